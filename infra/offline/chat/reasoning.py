"""What a written train of thought supports: places it names, with how firmly, and clues it tells of."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

from infra.offline.chat.beliefs import match_weight
from infra.offline.chat.clues import (
    LANGUAGE_NAMES,
    Evidence,
    countries_in,
    read_evidence,
    road_evidence,
    speakers,
    street_in,
)
from infra.offline.chat.notes import Notes, facts_only
from infra.offline.chat.placenames import Place, fold, place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.facts import countries
from infra.offline.gazetteer import admin1_names

STATED, LANGUAGE = 4.0, 1.5
FIRM, HEDGED, BORROWED, OPENING_WORD = 1.5, 0.5, 0.4, 0.4  # factors on what a mention is worth
MAX_CHARS = 40_000

_CONCLUSION = re.compile(r"<answer[^<>]{0,80}>.*?(?:</answer\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_FENCED = re.compile(r"<(think|reasoning|thought|cot)\b[^<>]{0,80}>(.*?)(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"^[ \t#*]*(?:the )?(?:reasoning|chain of thought|thoughts?|cot)\b[^\n:]{0,40}:", re.I | re.M)
_QUOTED = re.compile(r"(?<!\w)['\"‘“«]([^'\"‘’“”«»\n]{2,80}(?:['’]\w[^'\"‘’“”«»\n]{0,60})?)['\"’”»](?!\w)")
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|rather than|instead of|unlike|exclud\w+|rul(?:es?|ed|ing) out"
    r"|isn't|cannot be|can't be|unlikely|as opposed to|different from|no longer)\b[^.;,]{0,50}$",
    re.IGNORECASE,
)
_REJECTED_AFTER = re.compile(
    r"^[^.;,]{0,30}\b(?:is|are|was|can be|could be)\s+(?:ruled out|excluded|unlikely|impossible|out of the question)",
    re.I,
)
_HEDGE = re.compile(
    r"\b(?:might|may|could|perhaps|possibly|maybe|cities like|countries like|such as|or|either)\b", re.I
)
_FIRM = re.compile(
    r"\b(?:settle on|conclu\w+|therefore|thus|strongly|must be|clearly|confirm\w*|identif\w+|point(?:s|ing)? to"
    r"|located in|final\w*|is readable|best match|i take|most likely|indicates?)\b",
    re.IGNORECASE,
)
_SIDE = re.compile(
    r"\b(?:driv\w+|traffic|cars?|keeps?)\b[^.;]{0,40}\b(?:on|to) the (left|right)\b"
    r"|\b(left|right)-hand (?:driving|traffic)|\bdriv\w+ side\W{1,4}(left|right)\b",
    re.IGNORECASE,
)
_CENTRE = re.compile(
    r"\bcent(?:re|er) lines? (?:is|are|:)\s*(yellow|white)|\b(yellow|white) (?:\w+ )?cent(?:re|er) line", re.IGNORECASE
)
_PHONE = re.compile(r"\+\d[\d ()-]{0,16}")
# Parts of the world that some village somewhere is called after.
_WIDE = re.compile(r"asia|europe|africa|america|oceania|arctic|java|sumatra|borneo|scandinavia|balkans")
_STREET = re.compile(r"\b(?:avenue|avenida|street|road|rue|via|strasse|calle|rua|boulevard|plaza|square|place)\b", re.I)
_DIVISION = re.compile(
    r"\b(?:province|state|region|oblast|county|prefecture|department|governorate|district|territory|canton|municipality)\b"
)


@dataclass
class Support:
    """What speaks for each country, first-level division (`<ISO2>.<code>`) and town."""

    evidence: Evidence = field(default_factory=Evidence)
    stated: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # countries by name
    regions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    places: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    denied: set[str] = field(default_factory=set)  # folded names the reasoning excludes
    suspicious: int = 0


def reasoning_in(request: ChatRequest) -> str:
    """The reasoning in the messages, without its conclusion: thoughts in tags, else after a label, else all."""
    text = "\n\n".join(m.text for m in request.messages if m.role not in ("system", "developer"))
    text = _CONCLUSION.sub("\n", text[:MAX_CHARS])
    fenced = [m.group(2) for m in _FENCED.finditer(text)]
    if fenced:
        return "\n".join(fenced)
    marked = _MARKED.search(text)
    return text[marked.end() :] if marked else text


def read_reasoning(text: str) -> Support:
    """The support a text gives, sentence by sentence; sentences that speak to the reader give none."""
    notes, support = Notes(), Support()
    sentences = [sentence for line in text.splitlines() for sentence in facts_only(line, notes)]
    support.suspicious = notes.suspicious
    quoted: list[str] = []
    for sentence in sentences:
        quoted += _QUOTED.findall(sentence)
        _read_countries(sentence, support)
        _read_regions(sentence, support)
        _read_places(sentence, support)
    whole = " ".join(sentences)
    support.evidence = read_evidence(dict.fromkeys([*quoted, *_PHONE.findall(_QUOTED.sub(" ", whole))]))
    side, centre = _SIDE.search(whole), _CENTRE.search(whole)
    if side or centre:
        road_evidence(
            support.evidence,
            side=next(word.lower() for word in side.groups() if word) if side else None,
            centre=next(word.lower() for word in centre.groups() if word) if centre else None,
        )
    for tag, name in LANGUAGE_NAMES.items():
        if re.search(rf"\b{re.escape(name)}\b", whole) and not _denied_in(whole, name):
            for code, share in speakers().get(tag, {}).items():
                support.evidence.scores[code] += LANGUAGE * share
    return support


def _read_countries(sentence: str, support: Support) -> None:
    for code in sorted(countries_in(sentence)):
        name = countries()[code].name
        if _denied_in(sentence, name):
            support.denied.add(fold(name))
        else:
            support.stated[code] += STATED * _firmness(sentence)


@lru_cache(maxsize=1)
def _regions_by_name() -> dict[str, list[str]]:
    """Folded name of a division, with and without its kind, to its codes."""
    found: dict[str, list[str]] = defaultdict(list)
    for code, name in admin1_names().items():
        folded = fold(name)
        for key in {folded, _bare(folded)} - {""}:
            found[key].append(code)
    return found


def _bare(folded: str) -> str:
    """A division's name without its kind."""
    return " ".join(_DIVISION.sub(" ", folded).replace(" of ", " ").split())


def _read_regions(sentence: str, support: Support) -> None:
    words = list(re.finditer(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", sentence))
    known = _regions_by_name()
    taken: list[tuple[int, int]] = []
    for size in (4, 3, 2, 1):
        for i in range(len(words) - size + 1):
            start, end = words[i].start(), words[i + size - 1].end()
            phrase = sentence[start:end]
            codes = (known.get(fold(phrase)) or known.get(_bare(fold(phrase)), [])) if phrase[:1].isupper() else []
            if not codes or (i == 0 and size == 1) or any(start < b and a < end for a, b in taken):
                continue
            taken.append((start, end))
            if _denied_at(sentence, start, end):
                support.denied.add(fold(phrase))
                continue
            for code in codes:
                support.regions[code] += STATED * _firmness(sentence)


def _read_places(sentence: str, support: Support) -> None:
    signs = [(m.start(1), m.end(1), m.group(1)) for m in _QUOTED.finditer(sentence)]
    for match in place_names().mentions(sentence, fuzzy=False):
        at = sentence.find(match.seen)
        # A name is written with a capital; every other word of a sentence is some village's name as well.
        if (not match.seen[:1].isupper() and match.seen.isascii()) or _WIDE.fullmatch(fold(match.seen)):
            continue
        if _denied_at(sentence, at, at + len(match.seen)):
            support.denied.add(fold(match.seen))
            continue
        weight = match_weight(match) * _firmness(sentence)
        sign = next((text for start, end, text in signs if start <= at < end), None)
        street = street_in(sign) if sign is not None else None
        if sign is not None and (_STREET.search(sign) or (street and fold(match.seen) in fold(street[0]))):
            weight *= BORROWED  # streets are called after other towns
        elif at == 0 and " " not in match.seen:
            weight *= OPENING_WORD
        support.places[match.place] += weight


def _firmness(sentence: str) -> float:
    if _HEDGE.search(sentence):
        return HEDGED
    return FIRM if _FIRM.search(sentence) else 1.0


def _denied_in(sentence: str, name: str) -> bool:
    at = fold(sentence).find(fold(name))
    return at >= 0 and _denied_at(fold(sentence), at, at + len(fold(name)))


def _denied_at(sentence: str, start: int, end: int) -> bool:
    return bool(_NEGATION.search(sentence[:start]) or _REJECTED_AFTER.search(sentence[end:]))
