"""Which requests were sent again although their answer had come, and whose fault it was.

A request was answered when the journal of the offline world calls it `ok`: status 200 or 206, the whole body sent to a
client that was still there, no fault. The same picture, details, box or tile answered twice is a repeat, and each
repeat has one cause:

- *fault*: something went wrong with the same picture in between (an address past its time needs the details again), or
  the place had failed in an earlier run and came again in a later one;
- *kill*: the command was killed in between, so what it had not committed is asked for again;
- *careless*: nothing happened in between. The only kind a better program would not send.
"""

import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

Entry = tuple[float, str, str, str]  # time, service, request, outcome

_PICTURE = re.compile(r"/mapillary-cdn/m/(\d+)/")
_DETAILS = re.compile(r"/mapillary/(\d+)\?")


@dataclass
class Repeats:
    """What was asked, and what of it again."""

    distinct: int = 0  # different things that were answered at least once
    faults: int = 0  # requests that met a fault or an error
    unheard: int = 0  # answered to a client that had been killed
    by_fault: int = 0
    careless: int = 0
    by_kill: list[int] = field(default_factory=list)  # one number a kill
    examples: list[str] = field(default_factory=list)  # of careless ones

    @property
    def careless_share(self) -> float:
        return self.careless / max(self.distinct, 1)

    @property
    def all_share(self) -> float:
        """Everything beyond the faults: careless repeats and those of kills."""
        return (self.careless + sum(self.by_kill)) / max(self.distinct, 1)


def thing(service: str, request: str) -> tuple[str, str]:
    """What a request asks for, whatever its signature, and whom a fault of it concerns: (request, group)."""
    found = _PICTURE.search(request)
    if found:
        return f"picture {found[1]}", found[1]
    found = _DETAILS.search(request)
    if found:
        return f"details {found[1]}", found[1]
    asked = parse_qs(request.partition("?")[2])
    box, kind = asked.get("bbox", [""])[0], asked.get("is_pano", [""])[0]
    # Photos and panoramas of a box are two questions.
    name = f"box {box} {kind}" if box else f"{service} {request}"
    return name, name


def count_repeats(journal: Iterable[Entry], kills: Sequence[float], later_runs: Sequence[float] = ()) -> Repeats:
    """Repeats by cause. `kills` and `later_runs` are moments: of each kill, and of the start of each run after an
    undisturbed one (only failed places come again there)."""
    answered: dict[tuple[str, str], list[float]] = defaultdict(list)
    faults: dict[str, list[float]] = defaultdict(list)
    found = Repeats(by_kill=[0] * len(kills))
    for moment, service, request, outcome in sorted(journal):
        name, group = thing(service, request)
        if outcome == "ok":
            answered[name, group].append(moment)
        elif outcome == "gone":
            found.unheard += 1
        else:
            faults[group].append(moment)
            found.faults += 1
    found.distinct = len(answered)
    for (name, group), moments in answered.items():
        for first, second in itertools.pairwise(moments):
            kill = _between(kills, first, second)
            if kill is not None:
                found.by_kill[kill] += 1
            elif _between(faults[group], first, second) is not None or _between(later_runs, first, second) is not None:
                found.by_fault += 1
            else:
                found.careless += 1
                found.examples.append(name)
    return found


def _between(moments: Sequence[float], first: float, second: float) -> int | None:
    """The place of the first of these moments that lies between two others."""
    place = bisect_left(moments, first)
    return place if place < len(moments) and moments[place] <= second else None
