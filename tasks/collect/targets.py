"""What is wanted for a place, what was found for it, and why something is missing."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate, Kind
from tasks.collect.download import Unusable
from tasks.collect.search import PlaceSearch

EXAMPLES = 5  # pictures that could not be used, named one by one in the evidence
_BROKEN = frozenset({"truncated", "not_an_image"})

OpenSearch = Callable[[float], PlaceSearch]  # half the side of the box in metres -> what lies in it
Take = Callable[[Candidate], Awaitable[dict[str, Any]]]  # the picture's row; raises Unusable


@dataclass
class Target:
    """Pictures of one kind wanted for a place, and what stood in the way."""

    kind: Kind
    wanted: int
    tries: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    taken: list[Candidate] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)  # by their keys
    half_sizes_m: list[float] = field(default_factory=list)  # that were searched
    problems: list[dict[str, str]] = field(default_factory=list)
    last: PlaceSearch | None = None

    @property
    def over(self) -> bool:
        """Fulfilled or given up."""
        return len(self.rows) == self.wanted or len(self.tried) == self.wanted + self.tries - 1

    async def look(self, search: PlaceSearch, half_size_m: float, take: Take) -> None:
        """Take what a search gives, best first, until there is enough of it."""
        self.half_sizes_m.append(half_size_m)
        self.last = search
        for earlier in self.taken:
            search.take(earlier)
        while not self.over and (candidate := await search.next(self.kind)) is not None:
            if candidate.key in self.tried:  # by a narrower search
                continue
            self.tried.add(candidate.key)
            try:
                row = await take(candidate)
            except Unusable as why:
                self.problems.append({"source_id": candidate.source_id, "kind": why.kind, "detail": why.detail})
                continue
            self.rows.append(row)
            self.taken.append(candidate)
            search.take(candidate)

    @property
    def reason(self) -> str:
        """Why pictures are missing, in one word."""
        if self.last is not None and self.last.unsearched and not self.over:
            return "not_all_searched"  # whatever there is: that there is no more would be a guess
        unclear = self.last.odd["unclear_kind"] if self.last is not None else 0  # each may be of the kind wanted
        if self.last is None or not (unclear or any(seen.pictures for seen in self.last.seen.values())):
            return "no_imagery_near"
        if self.rows:
            return "too_few_near"
        if not self.last.seen[self.kind].pictures and not unclear:
            return f"no_{self.kind}_near"
        kinds = {problem["kind"] for problem in self.problems}
        return "corrupt_image" if kinds and kinds <= _BROKEN else "no_usable_image"

    @property
    def evidence(self) -> dict[str, Any]:
        """What was done and seen before the search was given up. Counts are of the widest search."""
        facts: dict[str, Any] = {"half_sizes_m": self.half_sizes_m, "tried": len(self.tried)}
        if self.last is not None:
            mine = self.last.seen[self.kind]
            facts["seen"] = {f"{kind}s": seen.pictures for kind, seen in self.last.seen.items()}
            facts["nearest_m"] = None if mine.nearest_m is None else round(mine.nearest_m, 1)
            notes = {"too_small": mine.too_small, "unsearched_boxes": self.last.unsearched, **self.last.odd}
            facts |= {note: count for note, count in notes.items() if count}
        if self.problems:
            facts["problems"] = dict(sorted(Counter(problem["kind"] for problem in self.problems).items()))
            facts["examples"] = self.problems[:EXAMPLES]
        return facts


def targets_of(settings: CollectSettings) -> list[Target]:
    """What is wanted for every place."""
    both = Target("panorama", settings.panoramas, settings.tries), Target("photo", settings.photos, settings.tries)
    return [target for target in both if target.wanted]


async def collect_targets(
    targets: list[Target], half_sizes_m: tuple[float, ...], open_search: OpenSearch, take: Take
) -> None:
    """Look for everything that is wanted, farther away while something is missing."""
    for half_size_m in half_sizes_m:
        left = [target for target in targets if not target.over]
        if not left:
            return
        search = open_search(half_size_m)
        # Each comes to an end before an error goes on: nothing of a failed place works on in the background.
        looks = (target.look(search, half_size_m, take) for target in left)
        ends = await asyncio.gather(*looks, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
    if any(not target.over for target in targets) and search.trouble is not None:
        raise search.trouble  # what cannot be read is no reason to call a place finished
