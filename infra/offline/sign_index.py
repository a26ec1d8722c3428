"""Which places have a sign with these words: the small web that search and geocoding stand on."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from infra.offline.gazetteer import fold
from infra.offline.sign_words import KINDS, WORDS
from infra.offline.world import World


@dataclass(frozen=True)
class SignHit:
    """A place with a sign that fits the query, and how well: the share of the query's telling words on the sign."""

    place: int
    text: str
    score: float


def _common_words() -> frozenset[str]:
    """Words that stand on too many signs to tell places apart."""
    words: set[str] = set("the of in at on near where is location address phone tel city town street road".split())  # noqa: SIM905
    for entry in WORDS.values():
        for text in [entry.street_word, *(entry.word(kind) for kind in KINDS)]:
            words |= set(fold(text).split())
    return frozenset(words)


COMMON_WORDS = _common_words()


class SignIndex:
    """Telling words of all shop and street signs to places; built on first use."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._places: dict[str, list[int]] = {}
        self._ready = False

    def prepare(self) -> None:
        """Builds the index unless it is there; safe to call from several threads."""
        with self._lock:
            if self._ready:
                return
            for index in range(self._world.size):
                place = self._world.sign_texts(index)
                texts = [
                    place.street,
                    *(sign.lines[0] for sign in place.shops if sign.kind not in ("school", "town_hall")),
                ]
                for word in {word for text in texts for word in telling_words(text)}:
                    self._places.setdefault(word, []).append(index)
            self._ready = True

    def find(self, query: str, most: int = 20) -> list[SignHit]:
        """Places whose signs hold the query's telling words, best first; one wrong letter in a word is forgiven."""
        self.prepare()
        words = telling_words(query)
        score: dict[int, float] = {}
        for word in words:
            near = (
                [word] if word in self._places else [other for other in _one_letter_off(word) if other in self._places]
            )
            for other in near[:3]:
                posting = self._places[other]
                for place in posting[:200]:
                    score[place] = score.get(place, 0.0) + (1.0 if other == word else 0.7) / (1.0 + 0.02 * len(posting))
        best = sorted(score, key=lambda place: (-score[place], place))[: 2 * most]
        asked = set(fold(query).split())
        hits = []
        for place in best:
            text = self._text_for(place, words)
            # Common words cannot find a place, but "Boulangerie X" is still not "Pharmacie X".
            shared = len(asked & set(fold(text).split())) / max(1, len(asked))
            hits.append(SignHit(place, text, 0.85 * score[place] / max(1, len(words)) + 0.15 * shared))
        return sorted(hits, key=lambda hit: (-hit.score, hit.place))[:most]

    def _text_for(self, place: int, words: list[str]) -> str:
        signs = self._world.sign_texts(place)
        texts = [*(sign.lines[0] for sign in signs.shops), signs.street]
        return max(texts, key=lambda text: sum(word in telling_words(text) for word in words))


def telling_words(text: str) -> list[str]:
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
    return list(dict.fromkeys(found))


def _one_letter_off(word: str) -> list[str]:
    if len(word) < 5 or not word.isascii():
        return []
    letters = "abcdefghijklmnopqrstuvwxyz"
    off = [word[:i] + word[i + 1 :] for i in range(len(word))]
    off += [word[:i] + ch + word[i + 1 :] for i in range(len(word)) for ch in letters if ch != word[i]]
    off += [word[:i] + ch + word[i:] for i in range(len(word) + 1) for ch in letters]
    return off
