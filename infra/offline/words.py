"""Words on signs by language, names coined for streets and shops, and which words of a text tell places apart.

Languages whose script the packaged OCR weights (PP-OCRv6) cannot read are written romanised, as bilingual signs in
those countries are: it reads Latin, Chinese and Japanese; Greek letters are in its alphabet but come out wrong.
Vietnamese is written without tone marks for the same reason.
"""

import random
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from infra.offline.data import read_table

KINDS = ("bakery", "pharmacy", "school", "town_hall", "market", "restaurant")


@dataclass(frozen=True)
class SignWords:
    """The sign vocabulary of one language; `street` is a pattern with `{}` for the proper name."""

    language: str
    name: str  # of the language, in English
    bakery: str
    pharmacy: str
    school: str
    town_hall: str
    market: str
    restaurant: str
    street: str

    def word(self, kind: str) -> str:
        """The word painted on a sign of this kind (one of KINDS)."""
        return str(getattr(self, kind))

    @property
    def street_word(self) -> str:
        """The word for street alone, as a reader would recognise it."""
        return self.street.replace("{}", "").strip(" .-")


WORDS = {row["language"]: SignWords(**row) for row in read_table("sign_words.csv")}
"""Language tag -> sign words. A tag with a region (`pt-BR`) wins over its language (`pt`)."""


def fold(text: str) -> str:
    """A name as compared: lower case, accents and punctuation dropped, single spaces."""
    if text.isascii():  # most names; the whole gazetteer passes here
        return " ".join(text.lower().translate(_PLAIN).split())
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS))
    kept = "".join(ch if ch.isalnum() else " " for ch in plain if not unicodedata.combining(ch))
    return " ".join(kept.split())


_PLAIN = {code: None if chr(code) == "'" else " " for code in range(128) if not chr(code).isalnum()}
_LETTERS = {ord("ß"): "ss", ord("ø"): "o", ord("ł"): "l", ord("ı"): "i", ord("đ"): "d", ord("'"): None, ord("’"): None}


@dataclass(frozen=True)
class _Family:
    """Parts of names: a name is onset + middle + ending."""

    onsets: list[str]
    middles: list[str]
    endings: list[str]


def _family(row: dict[str, str]) -> _Family:
    # In the file `-` is an empty middle and `_` a space.
    middles = [middle.replace("-", "").replace("_", " ") for middle in row["middles"].split()]
    return _Family(row["onsets"].split(), middles, row["endings"].split())


_FAMILIES = {row["family"]: _family(row) for row in read_table("name_families.csv")}
_FAMILY_OF = {tag: row["family"] for row in read_table("name_families.csv") for tag in row["languages"].split()}
_LOCAL_NAMES = {
    "PH": "es",
    "PR": "es",
    "SG": "malay",
    "MY": "malay",
    "BN": "malay",
    "AE": "arabic",
    "PK": "persian",
    "MT": "it",
}
_ENGLISH_NAMED = frozenset(("AU", "NZ", "SH", "FK"))


def family_of(language: str, country: str, continent: str) -> str:
    """The family that names of a country's people and streets are coined from."""
    family = _FAMILY_OF.get(language) or _FAMILY_OF.get(language.split("-")[0]) or "en"
    if family == "en" and country not in _ENGLISH_NAMED:
        # English signs, local people: "Chandrapur Pharmacy" in India, "Mwanga Bakery" in Kenya.
        family = _LOCAL_NAMES.get(country) or {"AS": "indic", "AF": "african", "OC": "pacific"}.get(continent, "en")
    return family


def proper_name(language: str, country: str, continent: str, rng: random.Random) -> str:
    """A person's or street's name in the manner of the country, in the script its signs are painted in."""
    family = _FAMILIES[family_of(language, country, continent)]
    return rng.choice(family.onsets) + rng.choice(family.middles) + rng.choice(family.endings)


def names_of(family: str) -> tuple[list[str], list[str]]:
    """(names as `proper_name` coins them, longer names it never coins) of a family, sorted."""
    onsets, middles, endings = vars(_FAMILIES[family]).values()
    short = {a + b + c for a in onsets for b in middles for c in endings}
    if len(middles) == 1:
        long = {f"{a}{middles[0]}{c}{middles[0]}{b}" for a in onsets for c in endings for b in onsets}
    else:
        long = {a + b + d + c for a in onsets for b in middles for d in middles for c in endings}
    return sorted(short), sorted(long - short)


def _common_words() -> frozenset[str]:
    """Words that stand on too many signs to tell places apart."""
    words: set[str] = set("the of in at on near where is location address phone tel city town street road".split())  # noqa: SIM905
    for entry in WORDS.values():
        for text in [entry.street_word, *(entry.word(kind) for kind in KINDS)]:
            words |= set(fold(text).split())
    return frozenset(words)


COMMON_WORDS = _common_words()


@lru_cache(maxsize=200_000)  # shops of a family share few names
def telling_words(text: str) -> tuple[str, ...]:
    """The words of a text that can tell one place from another, without repeats."""
    telling = []
    for word in fold(text).split():
        for common in ("strasse", "straat", "gatan", "veien", "katu", "vegur", "gata", "通り", "路"):
            word = word.removesuffix(common) if len(word) > len(common) + 2 or not word.isascii() else word
        if not word.isascii():
            for entry in (WORDS["ja"], WORDS["zh"], WORDS["zh-TW"]):  # written without spaces
                for kind in KINDS:
                    word = word.removesuffix(entry.word(kind))
        if len(word) > 1 and word not in COMMON_WORDS and not word.isdigit():
            telling.append(word)
    return tuple(dict.fromkeys(telling))


def one_letter_off(word: str) -> list[str]:
    """Every spelling with one letter dropped, changed or added."""
    if len(word) < 5 or not word.isascii():
        return []
    letters = "abcdefghijklmnopqrstuvwxyz"
    off = [word[:i] + word[i + 1 :] for i in range(len(word))]
    off += [word[:i] + ch + word[i + 1 :] for i in range(len(word)) for ch in letters if ch != word[i]]
    off += [word[:i] + ch + word[i:] for i in range(len(word) + 1) for ch in letters]
    return off
