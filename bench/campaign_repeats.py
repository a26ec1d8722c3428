"""Which requests were sent again although their answer had come, and whose fault it was.

A request was answered when the journal of the offline world calls it `ok`: status 200 or 206, the whole body sent to a
client that was still there, no fault. The same picture, details, box or tile answered twice is a repeat; so is a
request for the details of many pictures when even one of them was answered before. Each repeat has one cause, the
worst that holds for anything it asks for:

- *fault*: something went wrong with the same picture in between (an address past its time needs the details again), or
  the place had failed in an earlier run and came again in a later one;
- *kill*: the command was killed in between, so what it had not committed is asked for again;
- *careless*: nothing happened in between. The only kind a better program would not send.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

Entry = tuple[float, str, str, str]  # time, service, request, outcome

_PICTURE = re.compile(r"/mapillary-cdn/m/(\d+)/")
_DETAILS = re.compile(r"/mapillary/(\d+)\?")
_MANY = re.compile(r"/mapillary/\?")


@dataclass
class Repeats:
    """What was asked, and what of it again."""

    distinct: int = 0  # requests that were answered and were no repeats
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

    @property
    def with_unheard_share(self) -> float:
        """The same with answers that were on their way at a kill, which no program could have kept."""
        return (self.careless + sum(self.by_kill) + self.unheard) / max(self.distinct, 1)


Thing = tuple[str, str]  # its name, and whom a fault of it concerns


def things(service: str, request: str) -> list[Thing]:
    """What a request asks for, whatever its signature."""
    found = _PICTURE.search(request)
    if found:
        return [(f"picture {found[1]}", found[1])]
    found = _DETAILS.search(request)
    if found:
        return [(f"details {found[1]}", found[1])]
    asked = parse_qs(request.partition("?")[2])
    if _MANY.search(request) and "ids" in asked:
        # Other fields are another question: those that a search compares, or the address of a picture.
        fields = "" if asked.get("fields") == ["id,thumb_original_url"] else " ".join(asked.get("fields", []))
        return [(f"details {one} {fields}".rstrip(), one) for one in asked["ids"][0].split(",")]
    box, kind = asked.get("bbox", [""])[0], asked.get("is_pano", [""])[0]
    # Photos and panoramas of a box are two questions.
    name = f"box {box} {kind}" if box else f"{service} {request}"
    return [(name, name)]


def count_repeats(journal: Iterable[Entry], kills: Sequence[float], later_runs: Sequence[float] = ()) -> Repeats:
    """Repeats by cause. `kills` and `later_runs` are moments: of each kill, and of the start of each run after an
    undisturbed one (only failed places come again there)."""
    answered: dict[str, float] = {}  # when last
    faults: dict[str, list[float]] = defaultdict(list)
    found = Repeats(by_kill=[0] * len(kills))
    for moment, service, request, outcome in sorted(journal):
        asked = things(service, request)
        if outcome == "gone":
            found.unheard += 1
        elif outcome != "ok":
            found.faults += 1
            for _, whom in asked:
                faults[whom].append(moment)
        else:
            causes: list[tuple[int, int]] = []  # how bad, and which kill
            for name, whom in asked:
                first = answered.get(name)
                if first is not None:
                    kill = _between(kills, first, moment)
                    by_fault = _between(faults[whom], first, moment) is not None
                    by_fault = by_fault or _between(later_runs, first, moment) is not None
                    causes.append((1, kill) if kill is not None else (0, 0) if by_fault else (2, 0))
                answered[name] = moment
            _count(found, max(causes, default=None), asked[0][0])
    return found


def _count(found: Repeats, cause: tuple[int, int] | None, name: str) -> None:
    match cause:
        case None:
            found.distinct += 1
        case 0, _:
            found.by_fault += 1
        case 1, kill:
            found.by_kill[kill] += 1
        case _:
            found.careless += 1
            found.examples.append(name)


def _between(moments: Sequence[float], first: float, second: float) -> int | None:
    """The place of the first of these moments that lies between two others."""
    place = bisect_left(moments, first)
    return place if place < len(moments) and moments[place] <= second else None
