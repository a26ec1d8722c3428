"""Which streets have a sign with these words: the small web that search and geocoding stand on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from infra.offline.gazetteer import fold
from infra.offline.kept_index import Lists, keep_lists, kept_lists, one_at_a_time
from infra.offline.place import Place, Sign
from infra.offline.seeded_random import fraction
from infra.offline.side_streets import SideStreet
from infra.offline.text_words import one_letter_off, telling_words
from infra.offline.world import World

MOST_TOWNS = 60  # of all that have a name, those a search engine would look at
MISSPELT = 0.7
LARGE = 20_000  # places: the signs of more are listed by a process of its own
_NONE = np.empty(0, np.int32)
Street = Place | SideStreet


@dataclass(frozen=True)
class SignHit:
    """A street with a sign that fits the query, and how well: the share of the query's telling words on its signs.

    `text` is the sign or street name that fits best; it always holds a word of the query, or one a letter off.
    """

    street: Street
    text: str
    score: float

    @property
    def sign(self) -> Sign | None:
        """The shop sign that was found, or None where it is the street itself."""
        return next((sign for sign in self.street.shops if sign.lines[0] == self.text), None)


class SignIndex:
    """Telling words of all shop and street signs to streets; built on first use."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._places: Lists = {}
        self._ready = False

    def prepare(self) -> None:
        """Builds the index unless it is there; safe to call from several threads."""
        with self._lock:
            if self._ready:
                return
            with one_at_a_time(*self._names):
                kept = kept_lists(*self._names)
                if kept is None and self._world.size > LARGE:
                    _list_elsewhere(self._world)
                    kept = kept_lists(*self._names)
                self._places = self.write() if kept is None else kept
            self._ready = True

    @property
    def _names(self) -> tuple[object, ...]:
        """Under which the lists are kept."""
        return "signs", self._world.seed, self._world.size, repr(self._world.modes)

    def write(self) -> Lists:
        """Lists the signs and keeps them, where that is possible."""
        return keep_lists(self._listed(), *self._names)

    def _listed(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index in range(self._world.size):
            texts = _texts(self._world.sign_texts(index))
            for word in {word for text in texts for word in telling_words(text)}:
                found.setdefault(word, []).append(index)
        return found

    def find(
        self, query: str, most: int = 20, towns: Collection[int] = (), lands: Collection[str] = ()
    ) -> list[SignHit]:
        """Streets whose signs hold the query's telling words, best first; one wrong letter in a word is forgiven.

        Streets of the given towns (gazetteer rows) and countries come before equals elsewhere.
        """
        self.prepare()
        words = telling_words(query)
        spelt = {word: self._spellings(word) for word in words}
        if not any(spelt.values()):
            return []
        asked = set(fold(query).split())
        hits = []
        for street in self._candidates(spelt, towns, lands, query):
            hit = _hit(street, spelt, asked)
            if hit is not None:
                hits.append(hit)

        def rank(hit: SignHit) -> tuple[float, float]:
            near = (hit.street.city.index in towns) + 0.5 * (hit.street.country in lands)
            # Of equals none is preferred for having imagery.
            return -hit.score - 0.4 * near, fraction("rank", query, hit.street.city.index, hit.text)

        return sorted(hits, key=rank)[:most]

    def _spellings(self, word: str) -> dict[str, float]:
        """Known words a query's word may mean, with how sure that is."""
        if self._is_known(word):
            return {word: 1.0}
        return {other: MISSPELT for other in one_letter_off(word) if self._is_known(other)}

    def _is_known(self, word: str) -> bool:
        return word in self._places or self._world.side_streets.knows(word)

    def _candidates(
        self, spelt: dict[str, dict[str, float]], towns: Collection[int], lands: Collection[str], query: str
    ) -> Iterable[Street]:
        """Places and side streets that have one of the words: those of the named towns, then the most fitting."""
        world, side = self._world, self._world.side_streets
        for row in towns:
            yield from (world.place(index) for index in world.places_of_town(row))
            yield from side.of_town(row)
        placed: dict[int, float] = {}
        rows: dict[int, float] = {}
        for spellings in spelt.values():
            for other, quality in list(spellings.items())[:3]:
                for index in self._places.get(other, _NONE).tolist():
                    placed[index] = placed.get(index, 0.0) + quality
                for row in side.towns_with(other, lands).tolist():
                    rows[row] = rows.get(row, 0.0) + quality
        country = world.gazetteer.country

        def order(row: int, score: float) -> tuple[float, float]:
            return -score - 0.5 * (str(country[row]) in lands), fraction("town", query, row)

        best = sorted(placed, key=lambda index: order(world.row_of(index), placed[index]))[:MOST_TOWNS]
        yield from (world.place(index) for index in best if world.row_of(index) not in towns)
        for row in sorted(rows, key=lambda row: order(row, rows[row]))[:MOST_TOWNS]:
            if row not in towns:
                yield from side.of_town(row)


def _list_elsewhere(world: World) -> None:
    """Have the signs listed by another process; returns when it has written its file, or could not.

    It takes half a minute of CPU, in which models and painters here would wait for Python's lock at every step.
    """
    command = [sys.executable, "-m", "infra.offline.list_signs", str(world.seed), str(world.asked_size)]
    command += world.modes.names()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as other:
        other.wait()


def _texts(street: Street) -> list[str]:
    """What a street's directory entries are called; schools and town halls bear the town's name."""
    shops = [sign.lines[0] for sign in street.shops if sign.kind not in ("school", "town_hall")]
    return [street.street, *shops]


def _hit(street: Street, spelt: dict[str, dict[str, float]], asked: set[str]) -> SignHit | None:
    """How well a street's signs fit, with the sign that fits best; None where none does."""
    held = {text: set(telling_words(text)) for text in _texts(street)}
    quality = np.zeros(len(spelt))
    best: tuple[float, float, str] | None = None
    for text, words in held.items():
        each = np.array(
            [max((q for other, q in known.items() if other in words), default=0.0) for known in spelt.values()]
        )
        quality = np.maximum(quality, each)
        if each.any():
            # Common words cannot find a place, but "Boulangerie X" is still not "Pharmacie X".
            shared = len(asked & set(fold(text).split())) / max(1, len(asked))
            best = max(best or (0.0, 0.0, ""), (float(each.sum()), shared, text))
    if best is None:
        return None
    return SignHit(street, best[2], 0.85 * float(quality.mean()) + 0.15 * best[1])
