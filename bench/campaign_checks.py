"""The faults of a campaign, and what must hold at its end: accounts, pictures, requests sent again without need.

A request was answered when the journal of the offline world calls it `ok`: status 200 or 206, the whole body sent to a
client that was still there, no fault. The same picture, details, box or tile answered twice is a repeat; so is a
request for the details of many pictures when even one of them was answered before. Each repeat has one cause, the
worst that holds for anything it asks for:

- *fault*: something went wrong with the same picture in between (an address past its time needs the details again), or
  it is of a place that had failed when a later run began (`LaterRun`);
- *kill*: the command was killed in between, so what it had not committed is asked for again;
- *careless*: nothing happened in between. The only kind a better program would not send. Also the same picture for
  another place, and whatever a later run asks about places that were done.

Signatures (`sas`) are not counted: they are secrets with an end, so every worker has to get its own.
"""

import io
import json
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from PIL import Image

from schemas.errors import LakeError
from tasks.geo.distance import distance_km
from tasks.lake import Lake

_BUSY = (429, 500, 502, 503, 504)
# 403 is a rate limit of the Graph API; of the image host and of the asset host it is an address that never passes, and
# of a STAC API a closed door. 402 is only for geocoders and searches, which are not asked here.
_STATUSES = {"mapillary": (*_BUSY, 403), "mapillary-tiles": (*_BUSY, 403)}
# `invalid_json` halves any body and gives its length as right: half a JPEG, half a range of a scene.
_CUTS = ("reset", "truncate", "content_type", "invalid_json")
_KINDS = {
    "mapillary": (*_CUTS, "drift", "duplicate_ids"),
    "mapillary-cdn": (*_CUTS, "expired_url"),
    "mapillary-tiles": ("reset", "truncate", "content_type"),
    "panoramax": (*_CUTS, "drift", "duplicate_ids"),
    "stac": (*_CUTS, "drift", "duplicate_ids"),
    "sas": (*_CUTS, "expired_url"),
    "blob": (*_CUTS, "expired_url"),
}
SKEW_S = 7200.0
LOST = 0.01  # share of the pictures that are listed but gone from the host, and known to the host but not to the API
CHANGED = 0.05  # share of the pictures that have other bytes from the middle of the campaign on


def rules(share: float, late: bool = False) -> list[dict[str, Any]]:
    """Faults of every kind, each as often as the others, together the share of requests.

    Besides, what leaves an answer as it is: slow ones, and clocks that go wrong; and pictures that are gone. `late`:
    some of the pictures are replaced, also those that were fetched by half.
    """
    found: list[dict[str, Any]] = []
    for service, kinds in _KINDS.items():
        every = [{"kind": "status", "status": status} for status in _STATUSES.get(service, _BUSY)]
        every += [{"kind": kind} for kind in kinds]
        # Each rule draws for itself: the shares of all together are 1 - (1 - rate) ** number.
        rate = 1 - (1 - share) ** (1 / len(every))
        found += [{"service": service, "rate": rate, **one} for one in every]
        found.append({"service": service, "kind": "slow_drip", "seconds": 2.0, "rate": 0.02})
    for service, ahead_s in (("mapillary", -SKEW_S), ("mapillary-cdn", SKEW_S), ("sas", -SKEW_S), ("blob", SKEW_S)):
        found.append({"service": service, "kind": "clock_skew", "seconds": ahead_s, "rate": 0.02})
    found += [
        {"service": service, "kind": "deleted", "rate": LOST} for service in ("mapillary", "mapillary-cdn", "panoramax")
    ]
    if late:
        found += [
            {"service": service, "kind": "changed", "rate": CHANGED} for service in ("mapillary-cdn", "panoramax")
        ]
    return found


Entry = tuple[float, str, str, str]  # time, service, request, outcome

_PICTURE = re.compile(r"/mapillary-cdn/m/(\d+)/|/panoramax/api/pictures/([0-9a-f-]{36})/")
_DETAILS = re.compile(r"/mapillary/(\d+)\?")
_MANY = re.compile(r"/mapillary/\?|/panoramax/api/search\?")
_TILE = re.compile(r"/(\d+)/(\d+)/(\d+)(?:\?|\.mvt)")
_SCENES = ("stac", "sas", "blob")
REACH_KM = 10.0  # from a place to the corner of its widest box, and half a tile more
Point = tuple[float, float]  # lat, lon


@dataclass(frozen=True)
class LaterRun:
    """A run after an undisturbed one: what had failed by then may be asked for again."""

    start: float
    failed: tuple[Point, ...] = ()  # places whose street-view pictures had failed
    scenes: bool = False  # whether any scene had: requests do not say for which place they are


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


def by_part(journal: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The requests for pictures of the streets, and for those from above."""
    found: dict[str, list[Entry]] = {"streets": [], "scenes": []}
    for entry in journal:
        found["scenes" if entry[1] in _SCENES else "streets"].append(entry)
    return found


Thing = tuple[str, str]  # its name, and whom a fault of it concerns


def things(service: str, request: str) -> list[Thing]:
    """What a request asks for, whatever its signature."""
    found = _PICTURE.search(request)
    if found:
        image_id = found[1] or found[2]
        return [(f"picture {image_id}", image_id)]
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
    name = f"box {service} {box} {kind}" if box else f"{service} {request}"
    return [(name, name)]


def count_repeats(
    journal: Iterable[Entry],
    kills: Sequence[float],
    later_runs: Sequence[LaterRun] = (),
    locate: Callable[[str], Point | None] = lambda image_id: None,
) -> Repeats:
    """Repeats by cause. `kills` are moments; `locate` tells where a picture was taken."""
    answered: dict[str, float] = {}  # when last
    faults: dict[str, list[float]] = defaultdict(list)
    found = Repeats(by_kill=[0] * len(kills))
    for moment, service, request, outcome in sorted(journal):
        if service == "sas":
            continue
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
                    by_fault = by_fault or any(
                        first <= run.start <= moment and _had_failed(run, service, request, whom, locate)
                        for run in later_runs
                    )
                    causes.append((1, kill) if kill is not None else (0, 0) if by_fault else (2, 0))
                answered[name] = moment
            _count(found, max(causes, default=None), asked[0][0])
    return found


def _had_failed(run: LaterRun, service: str, request: str, whom: str, locate: Callable[[str], Point | None]) -> bool:
    if service in _SCENES:
        return run.scenes
    point = _middle(request) if whom.startswith(("box ", service)) else locate(whom)
    return point is not None and any(distance_km(*point, *place) <= REACH_KM for place in run.failed)


def _middle(request: str) -> Point | None:
    """Of a box or a tile."""
    box = parse_qs(request.partition("?")[2]).get("bbox")
    if box:
        west, south, east, north = map(float, box[0].split(","))
        return (south + north) / 2, (west + east) / 2
    tile = _TILE.search(request)
    if tile is None:
        return None
    zoom, x, y = map(int, tile.groups())
    side = 2.0**zoom
    return math.degrees(math.atan(math.sinh(math.pi * (1 - 2 * (y + 0.5) / side)))), (x + 0.5) / side * 360 - 180


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


STAGES = ("collect", "collect.satellite")
MOST_REPEATS = 0.05  # of what was asked: an answer asked for again although neither fault nor error spoilt it


def wrong_rows(lake: Lake) -> list[str]:
    """Breaches of the accounts: places lost, left or twice, ids twice."""
    places = set(lake.read("places", columns=["place_id"])["place_id"])
    images = lake.read("images")
    found = []
    for stage in STAGES:
        mine, rejects = images.filter(stage=stage), lake.read("rejects").filter(stage=stage)
        kept, rejected = set(mine["place_id"]), {_place(row) for row in rejects.iter_rows(named=True)}
        left = lake.read("failures").filter(stage=stage)
        if left.height:
            found.append(f"{stage}: {len(left)} places failed: {left['kind'].value_counts().to_dicts()}")
        for what, ids in {
            "places neither kept nor rejected": places - kept - rejected,
            "places both kept and rejected": kept & rejected,
            "pictures or rejects of no place": (kept | rejected) - places,
        }.items():
            found += [f"{stage}: {len(ids)} {what}: {sorted(ids)[:3]}"] if ids else []
        found += [f"{stage}: a reject has no reason"] if (rejects["reason"].str.len_chars() == 0).any() else []
    for key in (["image_id"], ["place_id", "source", "source_id"]):
        twice = images.select(key).is_duplicated().sum()
        found += [f"{twice} rows of images share {', '.join(key)}"] if twice else []
    return found


def _place(reject: dict[str, Any]) -> str:
    """An item of the streets is a place; one from above names its place in the evidence."""
    return str(json.loads(reject["evidence_json"] or "{}").get("place_id", reject["item_id"]))


def wrong_pictures(lake: Lake) -> list[str]:
    """Stored pictures that are not what their row says."""
    found = []
    for row in lake.read("images").iter_rows(named=True):
        try:
            data = lake.images.read(row["sha256"], row["extension"])  # checks the sha256
            with Image.open(io.BytesIO(data)) as picture:
                picture.load()
                if (picture.width, picture.height, len(data)) != (row["width"], row["height"], row["bytes"]):
                    found.append(f"{row['image_id']}: not the size of its row")
        except (LakeError, OSError) as error:
            found.append(f"{row['image_id']}: {error}")
    return found


def wrong_requests(repeats: Repeats) -> list[str]:
    """Too much was asked for again, carelessly or because of kills."""
    if repeats.all_share < MOST_REPEATS:
        return []
    careless, kills = repeats.careless, sum(repeats.by_kill)
    return [
        f"{repeats.all_share:.1%} of what was asked was asked for again, under {MOST_REPEATS:.0%} wanted: "
        f"{careless} carelessly ({', '.join(repeats.examples[:5]) or 'none'}), {kills} after kills {repeats.by_kill}"
    ]
