"""Names as they are compared: case, accents and punctuation folded, usual short forms spelled out."""

import re
import unicodedata
from functools import lru_cache

MAX_NAME = 300  # names are short; decomposing a hostile one is not linear

# Letters that Unicode does not take apart.
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"})
# German and Nordic names are also written without their dots.
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa"})
_SHORT = {"st": "saint", "ste": "sainte", "ft": "fort", "mt": "mount", "sta": "santa", "sto": "santo"}
# Words that say what a place is, not which one.
_WORDS = """
    the of city town municipality municipio district county province state region prefecture governorate oblast krai
    raion canton department departement departamento provincia estado region autonomous metropolitan metropolis capital
    greater area local sar voivodeship community comunidad ville stadt kreis landkreis freistaat land territory"""
KINDS = frozenset(_WORDS.split())


@lru_cache(maxsize=200_000)
def fold(text: str) -> str:
    """The name in lower case without accents and punctuation, words parted by one space; `&` is `and`."""
    apart = unicodedata.normalize("NFKD", text[:MAX_NAME].casefold().replace("&", " and ").translate(_LETTERS))
    plain = "".join(letter for letter in apart if not unicodedata.combining(letter))
    return " ".join(re.sub(r"[\W_]+", " ", plain).split())


@lru_cache(maxsize=100_000)
def spellings(name: str) -> frozenset[str]:
    """The folded ways to write one name: as it is, umlauts spelled out, `St.` as `Saint`, initials joined (`U.K.`),
    and without words such as `Province`."""
    found = {fold(name), fold(unicodedata.normalize("NFC", name[:MAX_NAME]).casefold().translate(_UMLAUTS))}
    for folded in tuple(found):
        words = folded.split()
        found.add(" ".join(_SHORT.get(word, word) for word in words))
        found.add(_joined(words))
    for folded in tuple(found):
        found.add(" ".join(word for word in folded.split() if word not in KINDS))
    found.discard("")
    return frozenset(found)


def _joined(words: list[str]) -> str:
    """Runs of single letters as one word: `washington d c` is `washington dc`."""
    text = " ".join(words)
    return re.sub(r"\b(?:[a-z] )+[a-z]\b", lambda run: run[0].replace(" ", ""), text)
