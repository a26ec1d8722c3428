"""Statements of thoughts that the tools' results, the picture or the answer show to be false.

Text rules in several languages. A statement is named only where it cannot be true: hedged, negated and hypothetical
sentences are passed over, and so is what the rules do not understand. `tests/tasks/agent/test_claims.py` measures
both sides on planted statements.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from schemas.messages import Message, image_references, json_object, texts_of
from tasks.agent.environment import Trajectory
from tasks.agent.tagged import split_thought
from tasks.geo.labels import country_codes_of
from tasks.geo.names import country_code
from tasks.reward.answer import parse_answer
from tasks.reward.outcome import Truth
from tasks.reward.prose import countries_in, fold_text

Row = dict[str, Any]

LIKE = 0.8  # two readings of one word share this much of their letters
# Where traffic keeps to the left (ISO 3166 alpha-2); everywhere else it keeps to the right.
_LEFT_COUNTRIES = """
    AG AI AU BB BD BM BN BS BT BW CC CK CX CY DM FJ FK GB GD GG GY HK ID IE IM IN JE JM JP KE KI KN KY LC LK LS MO MS MT
    MU MV MW MY MZ NA NF NP NR NU NZ PG PK PN SB SC SG SH SR SZ TC TH TK TL TO TT TV TZ UG VC VG VI WS ZA ZM ZW"""
LEFT_DRIVING = frozenset(_LEFT_COUNTRIES.split())

# Writing that is quoted. A straight single quote counts only at the edge of a word: the rest are apostrophes.
_QUOTED = re.compile(
    r"\"([^\"\n]{2,80})\"|“([^”\n]{2,80})”|„([^“”\n]{2,80})[“”]|«([^»\n]{2,80})»|「([^」\n]{2,80})」"
    r"|(?<!\w)‘([^’\n]{2,80})’(?!\w)|(?<!\w)'([^'\n]{2,80})'(?!\w)"
)
_MASK = "\ufffc"  # stands for a quotation, whose own punctuation ends no sentence
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
# Before a quotation that is not read in the picture: what is looked for, supposed, explained or compared with.
_NOT_READ = re.compile(
    r"\b(?:search\w*|quer(?:y|ies)|look(?:ing)?|if|would|could|might|may|should|hop(?:e|ing)|expect\w*|perhaps|such as|"
    r"e\.g|for example|instead of|unlike|rather than|no|not|without|means?|meaning|translat\w+|for|known as|so-called|"
    r"nicknamed|like|suche?|wenn|statt|bedeutet|heißt|nicht|kein\w*|si|cherche\w*|signifie|pas|busc\w+|significa|"
    r"como|sin|procur\w+|cerc\w+)\b[^\w]*(?:\w+\W+){0,3}$|搜索\W*$|意思是?\W*$",
    re.IGNORECASE,
)
_READ = re.compile(
    r"\b(?:reads?|reading|says?|saying|sign\w*|text|writing|written|letter\w*|words?|label\w*|plates?|banner|\w*board|"
    r"poster|store ?front|shop ?front|inscri\w+|caption|displays?|shows?|schild\w*|steht|liest|lese|aufschrift|"
    r"schriftzug|panneau\w*|enseigne\w*|lit|lis|écrit\w*|plaque|letreros?|cartel\w*|señal\w*|rótulo\w*|dice|leo|lee|"
    r"escrito|placas?|letreiro|diz|leio|cartello|insegna|scritta|leggo)\b|вывеск|надпис|написан|табличк|招牌|牌|写着|字样|"
    r"看板|標識|書かれ|간판|표지|적혀|لافتة|مكتوب",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:if|would|could|might|may|maybe|perhaps|possibly|unclear|cannot|can't|not|n't|neither|nor|or|either|whether|"
    r"countries|unlike|rather|instead|exclud\w+|rul\w+ out|wenn|falls|oder|vielleicht|nicht|ob|länder\w*|si|peut-être|"
    r"ou|pas|pays|quizás?|tal vez|no|o|países|talvez|não|forse|non|paesi|если|или|не|стран\w*)\b|n't\b"
    r"|如果|可能|或|不|国家|かもしれ|ない|もし",
    re.IGNORECASE,
)
_SIDES = re.compile(
    r"\bkeep\w*\s+(?:to\s+)?(?:the\s+)?(left|right)\b|\bdriv\w+\s+(?:is\s+|are\s+)?on\s+the\s+(left|right)\b"
    r"|\btraffic\s+(?:is|moves|flows|runs|travels|drives|goes)\s+on\s+the\s+(left|right)\b"
    r"|\b(left|right)[- ]hand\s+(?:side\s+)?(?:traffic|driving)\b|\bdriving side(?:\W+is)?\W+(left|right)\b"
    r"|\b(links|rechts)verkehr|\bfährt\s+(?:man\s+|hier\s+)*(links|rechts)\b"
    r"|\b(?:roul\w+|condui\w+|circul\w+)\s+à\s+(gauche|droite)\b"
    r"|\b(?:conduc\w+|circul\w+|manej\w+|dirig\w+|conduz\w*)\s+(?:por la|pela)\s+(izquierda|derecha|esquerda|direita)\b"
    r"|\b(?:guida\w*|circola\w*)\s+a\s+(sinistra|destra)\b|(лево|право)сторонн\w+\s+движени|靠?(左|右)侧?(?:行驶|通行)"
    r"|(左|右)側通行",
    re.IGNORECASE,
)
_LEFT = ("left", "links", "gauche", "izquierda", "esquerda", "sinistra", "лево", "左")
# A tool is said to have given nothing: nothing at all, or nothing for what is named behind.
_OF = r"(?:\s+(?:for|about|on|of|called|named|matching|zu|für|von|über|pour|sur|de|para|sobre|per|su|для|о|по)\s+(.+))?"
_NOTHING = re.compile(
    r"\b(?:(?:has|had|have|found|finds?|gave|gives?|returned|returns?|shows?|showed|lists?|listed|yields?|yielded|"
    r"produced|turned up|came back with|brought up)\s+)?(?:(?:nothing|no (?:results?|match(?:es)?|entr(?:y|ies)|hits?|"
    r"such place))(?:\s+(?:at all|came up|came back|was found|were found|were returned))?"
    rf"|came back empty|were empty|was empty){_OF}\s*(?=$|[.,;:!?)])"
    r"|\b(?:do|does|did)(?: not|n't)\s+(?:know|list|find|have|show|include)(?: any(?:thing)?| entry for| results? for)*"
    r"\s+(.+?)\s*(?=$|[.;:!?)])"
    rf"|\b(?:findet|fand|liefert\w*|zeigt\w*|kennt|hat|ergab|gab)\s+(?:nichts|keine? (?:treffer|ergebnis\w*|eintr\w+))"
    rf"{_OF}\s*(?=$|[.,;:!?)])|\bkeine (?:treffer|ergebnisse|einträge){_OF}\s*(?=$|[.,;:!?)])"
    rf"|\b(?:aucun(?:e)? (?:résultat|correspondance|entrée)|n'a rien (?:trouvé|donné)|ne (?:trouve|donne|renvoie) rien)"
    rf"{_OF}\s*(?=$|[.,;:!?)])"
    rf"|\b(?:ningún resultado|sin resultados|no (?:encuentra|encontró|devuelve|devolvió|hay|tiene|muestra) (?:nada|"
    rf"resultados)|nenhum resultado|sem resultados|não (?:encontrou|encontra|há|tem|mostra) (?:nada|resultados)|"
    rf"nessun risultato|non (?:trova|ha trovato|mostra) (?:nulla|niente))"
    rf"{_OF}\s*(?=$|[.,;:!?)])|(?:нет результатов|ничего не наш\w+){_OF}\s*(?=$|[.,;:!?)])"
    r"|(?:没有(?:找到)?(?:任何)?结果|未找到(?:任何结果)?|結果はありません|見つかりませんでした)()",
    re.IGNORECASE,
)
_AFTER_NAME = re.compile(r"\(|\b(?:but|so|and then|(?:on|in|among) (?:the|any|this|its))\b", re.IGNORECASE)
_SUPPOSED = re.compile(r"\b(?:if|would|could|might|may|should|wenn|würde|si|se|если)\b|如果", re.IGNORECASE)
_FOUND = re.compile(
    r"(?:(?<!\ba )(?<!\bany )\b(?:geocoder|map|search|tool|lookup)|\b(?:results?|pages?|website|article))\b"
    r"[^.!?]{0,60}?\b(?:lists?|listed|shows?|showed|"
    r"says?|said|places?|placed|gives?|gave|confirm\w*|returned|found|reads?|mentions?|puts?|locates?|proves?)\b"
    r"|\b(?:karte|suche|ergebnis\w*|seite)\b[^.!?]{0,60}?\b(?:zeigt|bestätigt|nennt|liefert|ergab|sagt)\b"
    r"|\b(?:carte|recherche|résultats?|page)\b[^.!?]{0,60}?\b(?:montre\w*|confirme\w*|indique\w*|donne\w*)\b"
    r"|\b(?:mapa|búsqueda|resultados?|página)\b[^.!?]{0,60}?\b(?:muestra\w*|confirma\w*|indica\w*|dice\w*)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:no|not|nothing|none|never|fail\w*|empty|without|error\w*|cannot|unknown|should|would|will|could|may|might|can|"
    r"let|if|hope|expect\w*|next|I (?:now |then )?(?:look|search|ask|need|want|call|use|check|try|zoom)|"
    r"nichts|kein\w*|nicht|aucun\w*|rien|pas|nada|ning\w+|sin|will|wird|soll\w*)\b|n't\b",
    re.IGNORECASE,
)
_CONCLUDED = re.compile(
    r"\b(?:settle on|conclu\w+|my (?:final )?answer|final answer|must be|this is in|located in|"
    r"the (?:picture|image|photo) (?:was taken|is) in)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Result:
    """What one call gave: its rows, or None where the tool gives no rows, such as a picture."""

    rows: tuple[Row, ...] | None
    failed: bool


@dataclass(frozen=True)
class Turn:
    """One reply of the model: what it states, and what came since its last one."""

    statements: str
    results: tuple[Result, ...]
    has_new_picture: bool
    seen: str  # every text before it, plain
    pictures: int  # how many were shown by then
    is_last: bool


def turns_of(trajectory: Trajectory) -> Iterator[Turn]:
    """The replies in order, with what was known at each."""
    results: list[Result] = []
    seen: list[str] = []
    pictures, fresh = 0, False
    last = max((n for n, m in enumerate(trajectory.messages) if m["role"] == "assistant"), default=-1)
    for number, message in enumerate(trajectory.messages):
        texts, shown = texts_of(message), len(image_references([message]))
        pictures, fresh = pictures + shown, fresh or bool(shown)
        if message["role"] != "assistant":
            seen += [plain(text) for text in texts]
            results += [_result(text) for text in texts if message["role"] == "tool"]
            continue
        # What it asks a tool for it may quote in the same breath.
        arguments = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
        seen += [plain(text) for text in arguments]
        yield Turn(statements_of(message), tuple(results), fresh, "\n".join(seen), pictures, number == last)
        seen += [plain(text) for text in texts]
        results, fresh = [], False


def statements_of(message: Message) -> str:
    """What a reply says in prose: its thought, the texts of a JSON object, or what stands outside the answer."""
    text = "\n".join(texts_of(message))
    thought, reply_text = split_thought(text)
    value = json_object(reply_text)
    if value is not None:
        reply_text = "\n".join(_strings(value))
    else:
        reply_text = re.sub(r"<answer>.*?(?:</answer>|\Z)", "", reply_text, flags=re.DOTALL | re.IGNORECASE)
    return "\n".join(part for part in (thought, reply_text.strip()) if part)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _result(text: str) -> Result:
    value = json_object(text)
    if value is None:
        try:
            value = {"results": json.loads(text)}
        except (ValueError, RecursionError):
            return Result(None, False)
    if value.get("error"):
        return Result((), True)
    lists = [
        inner for inner in value.values() if isinstance(inner, list) and all(isinstance(row, dict) for row in inner)
    ]
    if lists:
        return Result(tuple(row for rows in lists for row in rows), False)
    rows = [row for row in value.values() if isinstance(row, dict)]
    return Result(tuple(rows) if rows else None, False)


def plain(text: str) -> str:
    """Words without case, accents and punctuation, parted by one blank."""
    return fold_text(text)


def sentences(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every sentence with its quotations masked, and the quotations."""
    quoted = [next(group for group in match.groups() if group is not None) for match in _QUOTED.finditer(text)]
    waiting = iter(quoted)
    for sentence in _SENTENCE_END.split(_QUOTED.sub(_MASK, text)):
        if sentence.strip():
            yield sentence, [next(waiting) for _ in range(sentence.count(_MASK))]


def quoted_signs(text: str) -> Iterator[str]:
    """What a text says it read: quotations that are neither looked for nor explained."""
    for sentence, quoted in sentences(text):
        read = _READ.search(sentence) is not None
        before = ""
        for words, part in zip(quoted, sentence.split(_MASK), strict=False):
            before = part if re.search(r"\w", part) else before + part  # a list is introduced once
            is_name = any(char.isupper() or char.isdigit() or ord(char) > 0x2FF for char in words)
            if (read or is_name) and not _NOT_READ.search(before):
                yield words


def is_read_in(quoted: str, seen: str) -> bool:
    """Whether a quotation stands in a plain text, its lines in any order and a letter or two misread."""
    parts = [plain(part) for part in re.split(r"…|\.\.\.|\s[|/]\s", quoted)]
    return all(_stands_in(part, seen) for part in parts if part)


def _stands_in(part: str, seen: str) -> bool:
    if f" {part} " in f" {' '.join(seen.split())} " or (not part.isascii() and part in seen):
        return True
    known = set(seen.split())
    return all(_is_word_of(word, known) for word in part.split())


def _is_word_of(word: str, known: set[str]) -> bool:
    if word in known or (len(word) >= 4 and any(word in form for form in known)):
        return True
    if len(word) < 4:
        return False
    alike = (form for form in known if abs(len(form) - len(word)) <= 2)
    return any(SequenceMatcher(None, word, form, autojunk=False).ratio() >= LIKE for form in alike)


def unseen_signs(trajectory: Trajectory, readings: Sequence[str] | None = None) -> list[str]:
    """Signs that thoughts quote and that neither a message nor a picture shown by then holds.

    `readings` is what another model read in each picture; an Observer's words are such readings. Without any, a thought
    may quote what the picture right before it shows.
    """
    read = tuple(trajectory.observations) or tuple(readings or ())
    unseen: list[str] = []
    invented: list[str] = []
    for turn in turns_of(trajectory):
        if turn.has_new_picture and not read:
            continue
        seen = turn.seen + "\n" + "\n".join(plain(text) for text in read[: turn.pictures])
        for quoted in quoted_signs(turn.statements):
            # Its own earlier words are no evidence for what stood nowhere then.
            if quoted in invented or not is_read_in(quoted, seen):
                invented.append(quoted)
                unseen.append(f'"{quoted}"')
    return list(dict.fromkeys(unseen))


def contradictions(trajectory: Trajectory, truth: Truth) -> list[str]:
    """Sentences of thoughts that the results before them, the answer or the picture's country show to be false."""
    country = country_code(truth.address.country or "") or next(iter(country_codes_of([truth.lat], [truth.lon])), None)
    problems: list[str] = []
    for turn in turns_of(trajectory):
        for sentence, quoted in sentences(turn.statements):
            whole = _filled(sentence, quoted)
            why = denied_result(whole, turn.results) or invented_result(whole, turn) or foreign_result(whole, turn)
            why = why or wrong_side(sentence, country)
            if why:
                problems.append(f"{whole.strip()[:160]} ({why})")
        if turn.is_last:
            problems += _unlike_answer(turn.statements, trajectory.final_text)
    return problems


def _filled(sentence: str, quoted: Sequence[str]) -> str:
    for words in quoted:
        sentence = sentence.replace(_MASK, words, 1)
    return sentence


def denied_result(sentence: str, results: Sequence[Result]) -> str:
    """Why a sentence that says a tool gave nothing is false; empty where it is not."""
    rows = [row for result in results if result.rows for row in result.rows]
    if not rows or any(not result.rows for result in results) or _SUPPOSED.search(sentence):
        return ""
    for match in _NOTHING.finditer(sentence):
        wanted = next((group for group in match.groups() if group), "")
        words = [word for word in plain(_AFTER_NAME.split(wanted)[0]).split() if len(word) > 2]
        if not words:
            if _names_tool(sentence) and not wanted:
                return f"there were {len(rows)} results"
            continue
        for row in rows:
            text = " ".join(plain(str(value)) for value in row.values() if isinstance(value, str))
            name = plain(str(row.get("name") or row.get("display_name") or row.get("title") or ""))
            listed = set(text.split())
            # A page of prose may hold the words apart; the name of a place holds them.
            if set(words) <= set(name.split()) or (len(text) < 300 and set(words) <= listed):
                return f"it lists {row.get('name') or row.get('display_name') or row.get('title')}"
    return ""


def _names_tool(sentence: str) -> bool:
    return bool(
        re.search(
            r"\b(?:geocoder|map|search|results?|tool|lookup|query|call|karte|suche|carte|recherche|mapa|búsqueda|busca|"
            r"ricerca)\b|запрос|поиск|搜索|检索|検索|地图|地図",
            sentence,
            re.IGNORECASE,
        )
    )


def invented_result(sentence: str, turn: Turn) -> str:
    """Why a sentence that reports a find is false: every call before it failed or gave nothing."""
    answered = [result for result in turn.results if not result.failed]
    if not turn.results or turn.has_new_picture or any(result.rows or result.rows is None for result in answered):
        return ""
    return "the calls before it gave nothing" if _FOUND.search(sentence) and not _DENIED.search(sentence) else ""


def foreign_result(sentence: str, turn: Turn) -> str:
    """Why a country that a sentence reports of a lookup is false: every point the lookup gave lies elsewhere."""
    if not _FOUND.search(sentence) or _DENIED.search(sentence) or _HEDGED.search(sentence):
        return ""
    named = countries_in(plain(sentence), sentence)
    points = [point for result in turn.results for row in result.rows or () if (point := point_of(row)) is not None]
    if len(named) != 1 or not points:
        return ""
    lats, lons = zip(*points, strict=True)
    there = {code for code in country_codes_of(lats, lons) if code}
    country = next(iter(named))
    texts = " ".join(str(value) for result in turn.results for row in result.rows or () for value in row.values())
    if not there or country in there or country in countries_in(plain(texts), texts):
        return ""
    return f"every point given lies in {', '.join(sorted(there))}"


def point_of(row: Row) -> tuple[float, float] | None:
    lat, lon = row.get("lat", row.get("latitude")), row.get("lon", row.get("lng", row.get("longitude")))
    try:
        point = float(lat), float(lon)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return point if -90 <= point[0] <= 90 and -180 <= point[1] <= 180 else None


def wrong_side(sentence: str, country: str | None) -> str:
    """Why a sentence on the side that traffic keeps to is false of a country; empty where it is not."""
    sides = {next(group for group in match.groups() if group).lower() for match in _SIDES.finditer(sentence)}
    if country is None or not sides or _HEDGED.search(_SIDES.sub("", sentence)):
        return ""
    left = {side in _LEFT for side in sides}
    if len(left) > 1 or left == {country in LEFT_DRIVING}:
        return ""
    return f"traffic keeps to the {'left' if country in LEFT_DRIVING else 'right'} there"


def _unlike_answer(statements: str, final_text: str) -> list[str]:
    """The concluding sentence that names other countries than the answer."""
    answer = parse_answer(final_text).address.country
    code = country_code(answer) if answer else None
    problems = []
    for sentence, quoted in sentences(statements) if code else ():
        whole = _filled(sentence, quoted)
        if not _CONCLUDED.search(whole) or _HEDGED.search(whole):
            continue
        named = countries_in(plain(whole), whole)
        if named and code not in named:
            problems.append(f"{whole.strip()[:160]} (the answer says {answer})")
    return problems
