"""Panoramax as a provider, alone and beside Mapillary, on the offline world over a real socket."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infra.offline.services.panoramax import licence_of, picture_id
from schemas.settings.collect import CollectSettings
from schemas.settings.curate import CurateSettings, QualitySettings
from tasks.collect import recheck, street_view
from tasks.collect.boxes import boxes_around
from tasks.collect.providers.panoramax.streets import LAYER, kind_of, read_record
from tasks.collect.providers.provider import open_providers
from tasks.collect.search import Search
from tasks.collect.tile_cache import TileCache
from tasks.collect.tiles import tiles_of
from tasks.curate import duplicates, quality
from tasks.lake import Lake
from tasks.runtime.runner import Context, StageResult, run

pytestmark = pytest.mark.usefixtures("in_process")
NAME = "0a1b2c3d-0000-4000-8000-00000000000a"
SMALL = {"panorama_width": 512, "panorama_min_pixels": 1}
ALONE = CollectSettings(providers=("panoramax",), **SMALL)
BOTH = CollectSettings(providers=("mapillary", "panoramax"), **SMALL)
PLACES = 8


def due(settings: CollectSettings, **refresh: Any) -> CollectSettings:
    changed = settings.refresh.model_copy(update={"after_days": 0.0, **refresh})
    return settings.model_copy(update={"refresh": changed})


def collect(context: Context, settings: CollectSettings) -> list[StageResult]:
    results = [run(stage, settings, context) for stage in (recheck.STAGE, street_view.STAGE)]
    assert not any(result.failed for result in results), context.lake.read("failures")
    return results


def item(**changes: Any) -> dict[str, Any]:
    """An item as the API answers it, with a camera of 360 degrees."""
    orientation = {"field_of_view": 360, "sensor_array_dimensions": [5760, 2880], "camera_model": "Max"}
    properties = {
        "datetime": "2024-05-17T08:30:00.5+00:00", "datetimetz": "2024-05-17T10:30:00.5+02:00", "view:azimuth": 350,
        "license": "CC-BY-SA-4.0", "geovisio:producer": "ada", "pers:interior_orientation": orientation,
        **changes.pop("properties", {}),
    }  # fmt: skip
    return {
        "id": NAME, "collection": "c1", "geometry": {"type": "Point", "coordinates": [2.35, 48.85]},
        "properties": properties, "assets": {"hd": {"href": "https://panoramax.example/api/pictures/x/hd.jpg"}},
        **changes,
    }  # fmt: skip


def test_an_item_is_read_as_a_record() -> None:
    record = read_record(item())
    assert (record.source, record.source_id, record.kind, record.pixels) == ("panoramax", NAME, "panorama", 16_588_800)
    assert record.point == record.found_at == (48.85, 2.35) and record.compass_angle == 350.0
    assert record.captured_at is not None and record.captured_at.isoformat() == "2024-05-17T08:30:00.500000+00:00"
    assert (record.creator, record.sequence_id, record.licence) == ("ada", "c1", "CC BY-SA 4.0")
    assert record.platform == "Panoramax (panoramax.example)"


@pytest.mark.parametrize(
    ("orientation", "kind"),
    [
        ({"field_of_view": 360, "sensor_array_dimensions": [4096, 2048]}, "panorama"),
        ({"field_of_view": 360, "sensor_array_dimensions": [4096, 2044]}, "panorama"),
        ({"field_of_view": 360, "sensor_array_dimensions": [4096, 2048], "visible_area": [0, 300, 0, 324]}, None),
        ({"field_of_view": 360, "sensor_array_dimensions": [4096, 1024]}, None),
        ({"field_of_view": 360}, None),
        ({"field_of_view": 69, "sensor_array_dimensions": [1600, 1200]}, "photo"),
        ({"sensor_array_dimensions": [1600, 1200]}, "photo"),
        ({"sensor_array_dimensions": [1600, 1200], "visible_area": [0, 1, 2, 3]}, None),
        ({"field_of_view": 400, "sensor_array_dimensions": [4096, 2048]}, None),
        ({"field_of_view": "360", "sensor_array_dimensions": "wide"}, "photo"),
        ({}, None),
    ],
)
def test_only_a_whole_sphere_is_a_panorama(orientation: dict[str, Any], kind: str | None) -> None:
    assert kind_of(orientation) == kind


@pytest.mark.parametrize(
    ("said", "licence"),
    [("CC-BY-SA-4.0", "CC BY-SA 4.0"), ("etalab-2.0", "etalab-2.0"), ("proprietary", None), (None, None), (7, None)],
)
def test_an_instance_without_a_licence_gives_no_licence(said: Any, licence: str | None) -> None:
    assert read_record(item(properties={"license": said})).licence == licence


def test_strange_values_are_absent_values() -> None:
    odd = read_record({"id": NAME, "properties": {"pers:interior_orientation": [1], "datetime": "soon"}, "assets": 3})
    assert (odd.kind, odd.point, odd.url, odd.captured_at, odd.platform) == (None, None, None, None, "Panoramax")
    local = read_record(item(properties={"datetime": "2024-05-17T08:30:00"}))
    assert local.captured_at is None, "a time without a zone is not known"
    named = item(providers=[{"name": "host", "roles": ["host"]}, {"name": "bob", "roles": ["producer"]}])
    del named["properties"]["geovisio:producer"]
    assert read_record(named).creator == "bob"


@pytest.mark.parametrize(
    ("find", "crowded_rows"), [("boxes", 500), ("auto", 500), ("auto", 3), ("tiles", 500), ("tiles", 3)]
)
async def test_every_picture_is_found_also_where_a_page_is_full(
    earth: Any, tmp_path: Path, find: Any, crowded_rows: int
) -> None:
    """There is no second page: a full one is looked at in smaller boxes, or by tiles."""
    settings = CollectSettings(
        providers=("panoramax",), find=find, crowded_rows=crowded_rows, panorama_min_pixels=1, photo_min_pixels=1
    )
    (provider,) = open_providers(earth.context(Lake(tmp_path / "lake")).connections, settings)
    for index in range(3):
        place = earth.world.place(index)
        search = Search(provider, TileCache(provider, 1000), settings, place.lat + 0.0004, place.lon, 300.0)
        names = set()
        for kind in ("panorama", "photo"):
            while (candidate := await search.next(kind)) is not None:
                names.add(candidate.source_id)
        (box,) = boxes_around(place.lat + 0.0004, place.lon, 300.0, 1.0)
        records = earth.world.images_in(box.west, box.south, box.east, box.north)
        licensed = {picture_id(record) for record in records if licence_of(record) != "proprietary"}
        assert names == licensed and search.unsearched == 0
        assert search.odd["no_licence"] == len(records) - len(licensed)


async def test_a_tile_says_what_an_item_says(earth: Any, tmp_path: Path) -> None:
    (provider,) = open_providers(earth.context(Lake(tmp_path / "lake")).connections, ALONE)
    place = earth.world.place(0)
    name = tiles_of(boxes_around(place.lat, place.lon, 10.0, 1.0)[0], LAYER.zoom)[0]
    images = await TileCache(provider, 1000).get(name)
    assert len(images) > 1
    for k, source_id in enumerate(images.names(images.inside(name.box, 1.0))):
        record = (await provider.by_id([source_id]))[source_id]
        assert record.captured_at is not None and record.captured_at.timestamp() * 1000 == images.captured_at_ms[k]
        assert images.is_pano[k] == (record.kind == "panorama")
        assert record.point == pytest.approx((images.lat[k], images.lon[k]), abs=2e-5)


@pytest.fixture
def lake(earth: Any, tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    earth.plan(made, PLACES, empty=1)
    return made


def test_a_lake_is_collected_without_any_key(earth: Any, lake: Lake) -> None:
    collect(earth.context(lake), ALONE)
    images = lake.read("images")
    assert set(images["source"]) == {"panoramax"} and set(images["kind"]) == {"panorama", "photo"}
    assert set(images["licence"]) <= {"CC BY-SA 4.0", "etalab-2.0"}
    for row in images.iter_rows(named=True):
        record = next(
            one for k in range(PLACES) for one in earth.world.images(k) if picture_id(one) == row["source_id"]
        )
        assert (row["lat"], row["lon"]) == pytest.approx((record.lat, record.lon), abs=1e-6)
        assert row["attribution"].endswith(f"by {record.creator} on Panoramax (127.0.0.1), {row['licence']}")
        assert row["image_id"] == lake.name("panoramax", row["source_id"], row["place_id"])
        assert "camera_type" in json.loads(row["metadata_json"])
    assert set(earth.log("requests")) == {"panoramax"}
    assert collect(earth.context(lake), ALONE)[1].items_in == 0, "a second run has nothing to do"


FAULTS = (
    {"service": "panoramax", "kind": "status", "status": 502, "rate": 0.1},
    {"service": "panoramax", "kind": "invalid_json", "rate": 0.1},  # of a picture: two thirds of it
    {"service": "panoramax", "kind": "reset", "rate": 0.1},
    {"service": "panoramax", "kind": "truncate", "rate": 0.1},
    {"service": "panoramax", "kind": "content_type", "rate": 0.05},
)


def test_faults_change_nothing_but_the_time_it_takes(earth: Any, lake: Lake, tmp_path: Path) -> None:
    collect(earth.context(lake), ALONE)
    rough = Lake(tmp_path / "rough")
    earth.plan(rough, PLACES, empty=1)
    earth.faults(*FAULTS, seed=3)
    for _ in range(10):
        if not run(street_view.STAGE, ALONE, earth.context(rough)).failed:
            break
    assert sum(earth.log("faults").values()) > 10
    told = ["place_id", "kind", "source_id", "sha256", "licence", "creator", "lat", "lon"]
    assert rough.read("images").select(told).sort(told).equals(lake.read("images").select(told).sort(told))


def test_what_is_gone_ends_and_what_changed_is_fetched_anew(earth: Any, lake: Lake) -> None:
    settings = ALONE.model_copy(update={"photos": 0})
    collect(earth.context(lake), settings)
    before = lake.read("images").sort("source_id")
    gone, changed = before["source_id"][0], before["source_id"][1]
    earth.faults(
        {"service": "panoramax", "kind": "deleted", "ids": [gone]},
        {"service": "panoramax", "kind": "changed", "ids": [changed]},
    )
    collect(earth.context(lake), due(settings))
    status = dict(lake.read("checks").filter(pl.col("subject") == "image").select("subject_id", "status").iter_rows())
    assert Counter(status.values()) == {"same": before.height - 2, "changed": 1, "deleted": 1}
    after = lake.read("images")
    assert gone not in set(after["source_id"])
    pair = pl.col("source_id") == changed
    assert after.filter(pair)["sha256"][0] != before.filter(pair)["sha256"][0]
    earth.forget()
    collect(earth.context(lake), due(settings, bytes="never"))
    assert not any("/pictures/" in name for name in earth.log("requests")), "existence alone needs no bytes"


def test_a_file_that_its_instance_no_longer_shows_is_gone_though_a_catalogue_still_lists_it(
    earth: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The federated catalogue learns of a deletion hours later."""
    settings = ALONE.model_copy(update={"photos": 0})
    collect(earth.context(lake), settings)
    images = lake.read("images").sort("source_id")
    gone = images["source_id"][0]
    listed = {}
    for row in images.iter_rows(named=True):
        listed[row["source_id"]] = f"{earth.url}/panoramax/api/pictures/{row['source_id']}/hd.jpg"

    async def addresses(self: Any, ids: Any) -> dict[str, str]:
        return {name: listed[name] for name in ids}

    monkeypatch.setattr("tasks.collect.providers.panoramax.streets.PanoramaxStreets.addresses", addresses)
    earth.faults({"service": "panoramax", "kind": "deleted", "ids": [gone]})
    run(recheck.STAGE, due(settings), earth.context(lake))
    ended = lake.read("checks").filter(pl.col("status") == "deleted")
    assert ended["subject_id"].to_list() == [images["image_id"][0]]
    assert gone not in set(lake.read("images")["source_id"])


def sources(lake: Lake) -> Counter[str]:
    return Counter(lake.read("images")["source"])


def test_two_providers_in_their_order(earth: Any, lake: Lake) -> None:
    """Where the first has enough the second is not asked; where it has none, it is."""
    collect(earth.context(lake), CollectSettings(**SMALL))
    first = lake.read("images").select("image_id", "sha256").sort("image_id")
    earth.forget()
    collect(earth.context(lake), BOTH)
    assert lake.read("images").select("image_id", "sha256").sort("image_id").equals(first)
    assert earth.log("requests").get("mapillary-cdn", 0) == 0, "what a place has is kept"
    turned = BOTH.model_copy(update={"providers": ("panoramax", "mapillary")})
    collect(earth.context(lake), turned)
    assert sources(lake)["panoramax"] > 0
    unlicensed = [k for k in range(PLACES) if licence_of(earth.world.images(k)[0]) == "proprietary"]
    for k in unlicensed:
        assert set(lake.read("images").filter(pl.col("place_id") == f"place{k}")["source"]) <= {"mapillary"}


def test_the_second_fills_what_the_first_has_lost(earth: Any, lake: Lake) -> None:
    earth.faults(*({"service": one, "kind": "deleted", "rate": 1.0} for one in ("mapillary", "mapillary-tiles")))
    collect(earth.context(lake), BOTH)
    assert sources(lake)["panoramax"] > 0 and sources(lake)["mapillary"] == 0


def test_the_nearest_of_both_counts(earth: Any, lake: Lake) -> None:
    """Mapillary's pictures have a quality, which brings them nearer; without that bonus positions decide."""
    settings = BOTH.model_copy(update={"prefer": "nearest", "quality_bonus_m": 0.0, "age_penalty_m": 0.0})
    collect(earth.context(lake), settings)
    apart = {"mapillary": Lake(lake.root.parent / "m"), "panoramax": Lake(lake.root.parent / "p")}
    for name, other in apart.items():
        earth.plan(other, PLACES, empty=1)
        collect(earth.context(other), settings.model_copy(update={"providers": (name,)}))

    def metres(one: Lake) -> dict[tuple[str, str], float]:
        rows = one.read("images").select("place_id", "kind", "metadata_json").iter_rows()
        return {(place, kind): json.loads(text)["distance_m"] for place, kind, text in rows}

    both, alone = metres(lake), [metres(one) for one in apart.values()]
    for wish, distance_m in both.items():
        if wish[1] == "panorama":  # photos come by size first
            assert distance_m == min(one.get(wish, 1e9) for one in alone)
    assert both.keys() == alone[0].keys() | alone[1].keys()


@pytest.mark.whole
def test_the_same_picture_of_two_providers_is_found_to_be_one(earth: Any, lake: Lake) -> None:
    collect(earth.context(lake), BOTH.model_copy(update={"panoramas": 12, "photos": 0, "half_sizes_m": (300.0,)}))
    context = earth.context(lake)
    run(quality.STAGE, QualitySettings(), context)
    run(duplicates.STAGE, CurateSettings(), context)
    images = lake.read("images").select("image_id", "source", "sha256")
    by_bytes = images.group_by("sha256").agg(pl.col("source").n_unique())
    twice = by_bytes.filter(pl.col("source") == 2)["sha256"]
    assert twice.len() > PLACES // 2
    judged = images.join(lake.read("duplicates").select("image_id", "reason"), on="image_id")
    for (sha256,), pair in judged.group_by("sha256"):
        if sha256 in twice:
            assert (pair["reason"] == "exact_duplicate").sum() == pair.height - 1, pair
