"""Panorama or photo: what nothing says is neither, and what a tile leaves open is asked for."""

from pathlib import Path
from typing import Any

import pytest
from mapbox_vector_tile import encode

from schemas.settings.collect import CollectSettings
from tasks.collect.providers.mapillary.streets import LAYER
from tasks.collect.street_view import WorkerContext, work
from tasks.collect.tiles import TileName, read_tile
from tasks.lake import Lake
from tasks.runtime.runner import Kept, Outcome, Rejected

LAT, LON = 48.85, 2.35


async def collected(streets: Any, tmp_path: Path, **settings: Any) -> Outcome:
    wanted = CollectSettings(panorama_width=1024, half_sizes_m=(300,), **settings)
    return await work(
        {"id": "p", "lat": LAT, "lon": LON}, WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), wanted)
    )


@pytest.mark.parametrize("photos", [0, 1])
async def test_what_a_tile_leaves_open_is_looked_at_once_for_both_wishes(
    streets: Any, tmp_path: Path, photos: int
) -> None:
    streets.tiles_tell_kinds = False
    streets.put("201", lat=LAT, lon=LON)
    outcome = await collected(streets, tmp_path, find="tiles", photos=photos)
    assert isinstance(outcome, Kept) and [row["source_id"] for row in outcome.rows["images"]] == ["201"]
    assert [gap["reason"] for gap in outcome.rows.get("gaps", [])] == ["no_photo_near"] * photos
    assert streets.asked["many"] == 1
    streets.put("202", lat=LAT + 0.001, lon=LON, is_pano=False)
    outcome = await collected(streets, tmp_path, find="tiles")
    assert isinstance(outcome, Kept) and [row["source_id"] for row in outcome.rows["images"]] == ["201", "202"]
    assert streets.asked["many"] == 2


def test_only_a_yes_or_no_of_a_tile_counts() -> None:
    for said, read in ((True, 1), (False, 0), (1, -1), ("true", -1)):
        image = {"geometry": "POINT (10 10)", "properties": {"id": 7, "is_pano": said}}
        data = encode([{"name": "image", "features": [image]}], default_options={"y_coord_down": True})
        tile = read_tile(data, TileName(8529, 5975, 14), LAYER)
        assert tile.is_pano.tolist() == [read]


@pytest.mark.parametrize("said", [1, "true", None])
@pytest.mark.parametrize("find", ["boxes", "tiles"])
async def test_a_picture_that_does_not_say_what_it_is_becomes_no_photo(
    streets: Any, tmp_path: Path, said: Any, find: str
) -> None:
    streets.put("11", lat=LAT, lon=LON, extra={"is_pano": said})
    outcome = await collected(streets, tmp_path, find=find)
    assert isinstance(outcome, Rejected) and outcome.reason == "no_usable_image"  # there is a picture
    assert all(one["unclear_kind"] == 1 for one in outcome.evidence.values())
