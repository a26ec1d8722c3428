"""Which of a place's pictures is taken first.

A picture's score is in metres, lower is better:

    score = distance - quality_bonus_m * quality + age_penalty_m * years before age_reference
            + sequence_penalty_m, if another picture of its sequence was taken for the place

Photos below the preferred size come after all others, whatever their score; pictures closer than sequence_spacing_m
to one that was taken from the same sequence come last of all. Nothing here looks at the clock or at the order in
which the service answered, so the same pictures are chosen every time.
"""

import heapq
import math
from collections.abc import Iterable
from datetime import UTC, datetime, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate
from tasks.geo.distance import distance_km

OLDEST_YEARS = 20.0  # older pictures, and those that do not say when they were taken, count as this old
_YEAR_S = 365.25 * 86_400.0

Rank = tuple[Any, ...]  # compares: the lowest is the best


def usable(candidate: Candidate, settings: CollectSettings) -> bool:
    """Whether it is large enough, as far as is known."""
    least = settings.panorama_min_pixels if candidate.kind == "panorama" else settings.photo_min_pixels
    return candidate.pixels is None or candidate.pixels >= least


def score_m(candidate: Candidate, settings: CollectSettings) -> float:
    """The score of a picture before others are taken for its place."""
    bonus_m = settings.quality_bonus_m * candidate.quality
    return candidate.distance_m - bonus_m + age_m(candidate.captured_at, settings)


def age_m(captured_at: datetime | None, settings: CollectSettings) -> float:
    """Metres that a picture's age counts for."""
    years = OLDEST_YEARS if captured_at is None else (_reference(settings) - captured_at).total_seconds() / _YEAR_S
    return settings.age_penalty_m * min(max(years, 0.0), OLDEST_YEARS)


def best_scores_m(
    distances_m: NDArray[np.float64], captured_at_ms: NDArray[np.int64], settings: CollectSettings
) -> NDArray[np.float64]:
    """The best scores that pictures can have whose quality is not known yet."""
    years = (_reference(settings).timestamp() - captured_at_ms / 1000.0) / _YEAR_S
    ages_m = settings.age_penalty_m * np.clip(years, 0.0, OLDEST_YEARS)
    return np.asarray(distances_m - settings.quality_bonus_m + ages_m)


def _reference(settings: CollectSettings) -> datetime:
    return datetime.combine(settings.age_reference, time(), UTC)


class Queue:
    """Candidates of one kind for one place, best first; what was taken makes its neighbours less wanted."""

    def __init__(self, settings: CollectSettings) -> None:
        self._settings = settings
        self._heap: list[tuple[Rank, Candidate]] = []
        self._taken: list[Candidate] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, candidate: Candidate) -> None:
        heapq.heappush(self._heap, (self.rank(candidate), candidate))

    def take(self, candidate: Candidate) -> None:
        """Note that this one was taken for the place."""
        self._taken.append(candidate)

    def best(self) -> Rank | None:
        """The rank of the first candidate; None if there is none."""
        while self._heap:
            rank, candidate = self._heap[0]
            now = self.rank(candidate)
            if now == rank:
                return rank
            # What was taken since has made it worse. It can only get worse, so its old place was never too late.
            heapq.heapreplace(self._heap, (now, candidate))
        return None

    def pop(self) -> Candidate:
        """Remove and return the first candidate."""
        if self.best() is None:
            raise IndexError("the queue is empty")
        return heapq.heappop(self._heap)[1]

    def rank(self, candidate: Candidate) -> Rank:
        """Where a candidate stands, given what was taken."""
        settings = self._settings
        relatives = [
            taken
            for taken in self._taken
            if taken.sequence_id is not None and taken.sequence_id == candidate.sequence_id
        ]
        close = any(
            distance_km(relative.lat, relative.lon, candidate.lat, candidate.lon) * 1000.0 < settings.sequence_spacing_m
            for relative in relatives
        )
        small = candidate.kind == "photo" and (candidate.pixels or 0) < settings.photo_preferred_pixels
        score = score_m(candidate, settings) + (settings.sequence_penalty_m if relatives else 0.0)
        # After the score: whatever still tells two apart, so that one that is nowhere worse is never behind.
        newest = -math.inf if candidate.captured_at is None else candidate.captured_at.timestamp()
        return close, small, score, candidate.distance_m, -candidate.quality, -newest, candidate.source_id


def choose(candidates: Iterable[Candidate], wanted: int, settings: CollectSettings) -> list[Candidate]:
    """The best pictures for a place, in the order in which they are tried, if all can be had."""
    queue = Queue(settings)
    for candidate in candidates:
        if usable(candidate, settings):
            queue.add(candidate)
    chosen: list[Candidate] = []
    while len(queue) and len(chosen) < wanted:
        chosen.append(queue.pop())
        queue.take(chosen[-1])
    return chosen
