"""Which streets have a sign with these words: the small web that search and geocoding stand on."""

import bisect
import hashlib
import itertools
import os
import tempfile
import threading
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from cachetools import cached

from infra.offline.place import Sign
from infra.offline.seeded_random import fraction
from infra.offline.side_streets import STREETS, Street
from infra.offline.words import fold, one_letter_off, telling_words
from infra.offline.world import World

MOST_TOWNS = 60  # of all that have a name, those a search engine would look at
MISSPELT = 0.7
LARGE = 10_000  # places: the list of a larger world is kept for the next server


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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A street by what its signs say: most that are looked at are not answered, and a street takes long to make."""

    town: int  # gazetteer row
    texts: tuple[str, ...]
    index: int  # of a place
    number: int | None  # in its town, of a side street


_NONE = np.empty(0, np.int32)


class SignIndex:
    """Telling words of all shop and street signs to streets; built on first use."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_word = cached({}, condition=threading.Condition())(self._list_places)
        self._sorted = cached({}, condition=threading.Condition())(lambda: sorted(self._by_word()))
        self._texts_at = lru_cache(maxsize=65_536)(lambda index: _texts(world.sign_texts(index)))

    def prepare(self) -> None:
        """Builds the index unless it is there; safe from several threads."""
        self._by_word()

    def _list_places(self) -> dict[str, np.ndarray]:
        """Places by word. It takes half a minute of CPU for 200,000 places, so a large world's list is kept."""
        if self._world.size < LARGE:
            return self._read_signs()
        file, code = _kept_list(self._world)
        try:
            with np.load(file) as kept:
                if kept["code"].tobytes() == code:
                    words = kept["words"].tobytes().decode().split("\n")
                    return dict(zip(words, np.split(kept["places"], kept["ends"][:-1]), strict=True))
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
            pass  # it is not there, or was cut off
        found = self._read_signs()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as partial:
                np.savez(
                    partial,
                    code=np.frombuffer(code, np.uint8),
                    words=np.frombuffer("\n".join(found).encode(), np.uint8),
                    ends=np.cumsum([len(places) for places in found.values()]),
                    places=np.concatenate(list(found.values())),
                )
            Path(partial.name).replace(file)
        except OSError:  # a home that cannot be written to
            pass
        return found

    def _read_signs(self) -> dict[str, np.ndarray]:
        places_by_word: dict[str, list[int]] = {}
        for index in range(self._world.size):
            texts = _texts(self._world.sign_texts(index))
            for word in {word for text in texts for word in telling_words(text)}:
                places_by_word.setdefault(word, []).append(index)
        return {word: np.array(places, np.int32) for word, places in places_by_word.items()}

    def find(
        self, query: str, most: int = 20, towns: Collection[int] = (), lands: Collection[str] = ()
    ) -> list[SignHit]:
        """Streets whose signs hold the query's telling words, best first; one wrong letter in a word is forgiven.

        Streets of the given towns (gazetteer rows), countries and divisions (by code) come before equals elsewhere.
        """
        words = telling_words(query)
        spelt = {word: self._spellings(word) for word in words}
        if not any(spelt.values()):
            return []
        query_words = set(fold(query).split())
        known = {other for spellings in spelt.values() for other in spellings}
        hits = []
        for candidate in self._candidates(spelt, towns, lands, query):
            fit = _fit(candidate.texts, spelt, known, query_words)
            if fit is not None:
                text, score = fit
                near = (candidate.town in towns) + 0.5 * self._lies_in(candidate.town, lands)
                # Of equals none is preferred for having imagery.
                hits.append(
                    ((-score - 0.4 * near, fraction("rank", query, candidate.town, text)), candidate, text, score)
                )
        hits.sort(key=lambda hit: hit[0])
        return [SignHit(self._street(candidate), text, score) for _, candidate, text, score in hits[:most]]

    def completions(self, text: str, most: int) -> list[str]:
        """The text with its last word finished, for each word of photographed signs that begins so."""
        head, _, begun = fold(text).rpartition(" ")
        words = self._sorted()
        first = bisect.bisect_left(words, begun)
        found = itertools.takewhile(lambda word: word.startswith(begun), words[first:])
        return [f"{head} {word}".strip() for word in itertools.islice(found, most)] if len(begun) >= 3 else []

    def _street(self, candidate: Candidate) -> Street:
        if candidate.number is None:
            return self._world.place(candidate.index)
        return self._world.side_streets.of_town(candidate.town)[candidate.number]

    def _spellings(self, word: str) -> dict[str, float]:
        """Known words a query's word may mean, with how sure that is."""
        photographed, side_streets = self._by_word(), self._world.side_streets

        def is_known(text: str) -> bool:
            return text in photographed or side_streets.knows(text)

        return {word: 1.0} if is_known(word) else {other: MISSPELT for other in one_letter_off(word) if is_known(other)}

    def _candidates(
        self, spelt: dict[str, dict[str, float]], towns: Collection[int], lands: Collection[str], query: str
    ) -> Iterable[Candidate]:
        """Places and side streets that have one of the words: those of the named towns, then the most fitting."""
        world, side = self._world, self._world.side_streets
        for row in towns:
            yield from (self._placed(index) for index in world.places_of_town(row))
            yield from self._side(row, range(len(STREETS)))
        placed: dict[int, float] = {}
        rows: dict[int, float] = {}
        streets: dict[int, set[int]] = {}
        for spellings in spelt.values():
            for other, quality in list(spellings.items())[:3]:
                for index in self._by_word().get(other, _NONE).tolist():
                    placed[index] = placed.get(index, 0.0) + quality
                for row, numbers in side.streets_with(other, lands).items():
                    rows[row] = rows.get(row, 0.0) + quality
                    streets.setdefault(row, set()).update(numbers)

        def order(row: int, score: float) -> tuple[float, float]:
            return -score - 0.5 * self._lies_in(row, lands), fraction("town", query, row)

        best = sorted(placed, key=lambda index: order(world.row_of(index), placed[index]))[:MOST_TOWNS]
        yield from (self._placed(index) for index in best if world.row_of(index) not in towns)
        for row in sorted(rows, key=lambda row: order(row, rows[row]))[:MOST_TOWNS]:
            if row not in towns:
                yield from self._side(row, sorted(streets[row]))

    def _lies_in(self, row: int, lands: Collection[str]) -> bool:
        known = self._world.gazetteer
        return str(known.country[row]) in lands or known.region_code(row) in lands

    def _placed(self, index: int) -> Candidate:
        return Candidate(self._world.row_of(index), self._texts_at(index), index, None)

    def _side(self, row: int, numbers: Iterable[int]) -> Iterable[Candidate]:
        return (Candidate(row, self._world.side_streets.texts(row, number), 0, number) for number in numbers)


def _kept_list(world: World) -> tuple[Path, bytes]:
    """(file that a world's list is kept in, digest of the code and data that it follows from)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geofix" / "offline"
    here = Path(__file__).parent
    code = hashlib.sha256(world.gazetteer.ids.tobytes())
    for file in sorted([*here.glob("*.py"), *(here / "data").glob("*.*")]):
        code.update(file.read_bytes())
    name = "-".join(["signs", str(world.seed), str(world.size), *world.modes.names()])
    return cache / f"{name}.npz", code.digest()


def _texts(street: Street) -> tuple[str, ...]:
    """What a street's directory entries are called; schools and town halls bear the town's name."""
    shops = [sign.lines[0] for sign in street.shops if sign.kind not in ("school", "town_hall")]
    return street.street, *shops


def _fit(
    texts: Iterable[str], spelt: dict[str, dict[str, float]], known: set[str], query_words: set[str]
) -> tuple[str, float] | None:
    """The sign that fits best and how well the street's signs fit; None where none does."""
    quality = [0.0] * len(spelt)
    best: tuple[float, float, str] | None = None
    for text in texts:
        words = telling_words(text)
        if known.isdisjoint(words):
            continue
        each = [
            max((q for other, q in quality_by_word.items() if other in words), default=0.0)
            for quality_by_word in spelt.values()
        ]
        quality = [max(pair) for pair in zip(quality, each, strict=True)]
        # Common words cannot find a place, but "Boulangerie X" is still not "Pharmacie X".
        shared = len(query_words & set(fold(text).split())) / max(1, len(query_words))
        best = max(best or (0.0, 0.0, ""), (sum(each), shared, text))
    if best is None:
        return None
    return best[2], 0.85 * (sum(quality) / len(quality)) + 0.15 * best[1]
