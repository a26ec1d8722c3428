"""Which words of a text can tell one place from another."""

from __future__ import annotations

from functools import lru_cache

from infra.offline.gazetteer import fold
from infra.offline.sign_words import KINDS, WORDS


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
    found = []
    for word in fold(text).split():
        for common in ("strasse", "straat", "gatan", "veien", "katu", "vegur", "gata", "通り", "路"):
            word = word.removesuffix(common) if len(word) > len(common) + 2 or not word.isascii() else word
        if not word.isascii():
            for entry in (WORDS["ja"], WORDS["zh"], WORDS["zh-TW"]):  # written without spaces
                for kind in KINDS:
                    word = word.removesuffix(entry.word(kind))
        if len(word) > 1 and word not in COMMON_WORDS and not word.isdigit():
            found.append(word)
    return tuple(dict.fromkeys(found))


def one_letter_off(word: str) -> list[str]:
    """Every spelling with one letter dropped, changed or added."""
    if len(word) < 5 or not word.isascii():
        return []
    letters = "abcdefghijklmnopqrstuvwxyz"
    off = [word[:i] + word[i + 1 :] for i in range(len(word))]
    off += [word[:i] + ch + word[i + 1 :] for i in range(len(word)) for ch in letters if ch != word[i]]
    off += [word[:i] + ch + word[i:] for i in range(len(word) + 1) for ch in letters]
    return off
