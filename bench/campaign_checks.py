"""What must hold at the end of a campaign: accounts, pictures, requests."""

import io
import json
from typing import Any

from PIL import Image

from bench.campaign_repeats import Repeats
from schemas.errors import LakeError
from tasks.lake import Lake

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
