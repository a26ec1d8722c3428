"""The stage over a real socket: what is chosen, read, put together and written, and what every fault leads to."""

import dataclasses
import io
import json
import time
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image
from starlette.responses import PlainTextResponse, Response

from schemas.settings.collect import CollectSettings
from schemas.settings.satellite import SatelliteSettings, Viewport
from schemas.tables import TABLES
from tasks.collect.responses import RecallingStac, StageResponses
from tasks.collect.satellite.picture import WorkerContext, make_picture
from tasks.collect.satellite.stage import identity, items
from tasks.lake import Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.runner import Kept, Rejected
from tasks.services import Connection, ServiceError
from tasks.services.response_store import ResponseStore
from tasks.services.sentinel.grid import grid_around
from tasks.services.sentinel.search import find_scenes

SIZE = 160
ITEM = {"id": "p:centre", "place_id": "p", "viewport": "centre", "lat": 52.5, "lon": 13.4, "metres_per_pixel": 10.0,
        "size_px": SIZE, "east": 0.0, "north": 0.0}  # fmt: skip
GRID = grid_around(52.5, 13.4, 10.0, SIZE)
ROUGH = np.random.default_rng(1).uniform(0.08, 0.14, (320, 320))  # compresses badly, as ground does


@pytest.fixture
def frame(ground: Any) -> Any:
    """A scene that reaches 800 m past the picture on every side."""
    return ground(GRID.epsg, GRID.left_m // 60 * 60 - 780, -(-GRID.top_m // 60) * 60 + 780, 320)


def bench(archive: Any, tmp_path: Any, **changed: Any) -> WorkerContext:
    return WorkerContext(archive.client(), Lake(tmp_path / "lake"), SatelliteSettings(size_px=SIZE, **changed))


def cloudy(frame: Any, west: float, east: float, kind: int = 9) -> np.ndarray:
    """Classes with a band of cloud between two shares of the picture's width."""
    classes = np.full((frame.size // 2, frame.size // 2), 4, np.uint8)
    first = (GRID.left_m - frame.left_m) / 20
    classes[:, round(first + west * SIZE / 2) : round(first + east * SIZE / 2)] = kind
    return classes


def metadata(outcome: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome.rows["images"][0]["metadata_json"])
    return found


async def test_a_withdrawn_picture_is_not_made_again(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("scene", frame, 0.15, 0.1, 0.05, cloud=3.5)
    table = bench(archive, tmp_path)
    [row] = (await make_picture(ITEM, table)).rows["images"]
    rules = Withdrawn(image_ids=frozenset({row["image_id"]}))
    outcome = await make_picture(ITEM, dataclasses.replace(table, withdrawn=rules))
    assert isinstance(outcome, Rejected) and outcome.reason == "withdrawn"
    assert not table.lake.images.exists(row["sha256"], "jpg")


async def test_the_row_says_what_the_picture_is(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("scene", frame, 0.15, 0.1, 0.05, cloud=3.5)
    table = bench(archive, tmp_path, white=0.3, gamma=1.0, jpeg_quality=100)
    outcome = await make_picture(ITEM, table)
    assert isinstance(outcome, Kept)
    [row] = outcome.rows["images"]
    assert set(row) <= set(TABLES["images"].columns) and all(
        row[name] is not None for name in TABLES["images"].required
    )
    assert (row["kind"], row["source"], row["place_id"]) == ("satellite", "sentinel-2-l2a", "p")
    assert row["attribution"] == "Contains modified Copernicus Sentinel data 2023"
    assert "Copernicus" in row["licence"]
    assert row["captured_at"] == datetime(2023, 7, 1, 10, tzinfo=UTC)
    assert row["request_url"] == f"{archive.url}/blob/acc/box/scene/B04.tif"  # without its signature
    assert row["image_id"] == table.lake.name("sentinel-2-l2a", row["source_id"], "p", "centre")
    assert abs(row["lat"] - 52.5) < 1e-4 and abs(row["lon"] - 13.4) < 1e-4
    picture = Image.open(io.BytesIO(table.lake.images.read(row["sha256"], "jpg")))
    assert picture.size == (row["width"], row["height"]) == (SIZE, SIZE)
    assert np.abs(np.asarray(picture).reshape(-1, 3).mean(axis=0) - (127.5, 85, 42.5)).max() < 2
    about = metadata(outcome)
    assert about["epsg"] == GRID.epsg and about["transform"] == GRID.transform
    assert about["viewport"] == "centre" and about["clear_share"] == 1.0 and about["no_data_share"] == 0.0
    assert [(s["id"], s["share"], s["cloud_percent"]) for s in about["scenes"]] == [("scene", 1.0, 3.5)]
    assert "SECRET" not in json.dumps(row, default=str)


async def test_the_same_item_gives_the_same_row(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("a", frame, 0.12, classes=cloudy(frame, 0.2, 0.5))
    archive.put("b", frame, 0.15, cloud=1.0)
    table = bench(archive, tmp_path)
    rows = [(await make_picture(ITEM, table)).rows["images"][0] for _ in range(2)]
    archive.items.reverse()
    archive.page = 1
    rows.append((await make_picture(ITEM, table)).rows["images"][0])
    for row in rows:
        row.pop("fetched_at")
    assert rows[0] == rows[1] == rows[2]


async def test_clouds_are_filled_from_another_scene_and_only_they(archive: Any, frame: Any, tmp_path: Any) -> None:
    # Tiles of 128 pixels: the cloud lies in the picture's west, in the western tiles of the second scene.
    archive.put("main", frame, *[ROUGH] * 3, cloudy(frame, 0.0, 0.15), cloud=1.0)
    archive.put("patch", frame, *[ROUGH] * 3, cloudy(frame, 0.5, 1.0), cloud=2.0)
    outcome = await make_picture(ITEM, bench(archive, tmp_path, buffer_m=20))
    about = metadata(outcome)
    assert about["clear_share"] == 1.0
    assert [scene["id"] for scene in about["scenes"]] == ["main", "patch"]
    assert about["scenes"][1]["share"] == pytest.approx(0.15, abs=0.03)
    read = {name: sum(end - start for path, start, end in archive.ranges if path == f"{name}/B04.tif" and start > 0)
            for name in ("main", "patch")}  # fmt: skip
    assert 0 < read["patch"] < read["main"]


async def test_further_scenes_are_not_looked_at_when_one_is_enough(archive: Any, frame: Any, tmp_path: Any) -> None:
    for number in range(5):
        archive.put(f"scene{number}", frame, 0.1, cloud=float(number))
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert [scene["id"] for scene in metadata(outcome)["scenes"]] == ["scene0"]
    assert {path.split("/")[0] for path, _, _ in archive.ranges} == {"scene0"}


async def test_a_scene_clear_over_the_place_beats_one_clear_elsewhere(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("clear elsewhere", frame, 0.1, classes=cloudy(frame, 0.1, 0.9), cloud=0.5)
    archive.put("clear here", frame, 0.1, cloud=15.0)
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert [scene["id"] for scene in metadata(outcome)["scenes"]] == ["clear here"]


@pytest.mark.parametrize("kind", [0, 1, 3, 8, 9, 10])
async def test_every_masked_class_is_masked(archive: Any, frame: Any, tmp_path: Any, kind: int) -> None:
    archive.put("main", frame, 0.1, classes=cloudy(frame, 0.0, 0.3, kind))
    archive.put("patch", frame, 0.1, cloud=1.0, classes=cloudy(frame, 0.7, 1.0))
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert len(about["scenes"]) == 2 and about["clear_share"] == 1.0


async def test_bright_roofs_are_not_clouds_and_rims_are(archive: Any, frame: Any, tmp_path: Any) -> None:
    classes = np.full((frame.size // 2,) * 2, 4, np.uint8)
    classes[::8, ::8] = 9
    archive.put("main", frame, 0.1, classes=classes)
    assert metadata(await make_picture(ITEM, bench(archive, tmp_path)))["clear_share"] == 1.0
    archive.items.clear()
    archive.put("cloud", frame, 0.1, classes=cloudy(frame, 0.45, 0.55))
    outcome = await make_picture(ITEM, bench(archive, tmp_path, min_clear_share=0.5))
    # Sixteen pixels of cloud, and sixty metres more on either side.
    assert metadata(outcome)["clear_share"] == pytest.approx(1 - (16 + 12) / SIZE, abs=0.02)


async def test_old_and_new_baselines_agree(archive: Any, frame: Any, tmp_path: Any) -> None:
    found = []
    for baseline in ("03.01", "04.00", "05.09"):
        archive.items.clear()
        archive.put(f"scene {baseline}", frame, 0.12, 0.09, 0.06, baseline=baseline)
        found.append((await make_picture(ITEM, bench(archive, tmp_path))).rows["images"][0]["sha256"])
    assert len(set(found)) == 1


async def test_scenes_of_different_light_show_no_seam(archive: Any, ground: Any, tmp_path: Any) -> None:
    left, top = GRID.left_m // 60 * 60, -(-GRID.top_m // 60) * 60
    # The same ground in both where they overlap: 276 pixels farther east.
    ground_seen = np.random.default_rng(1).uniform(0.08, 0.14, (320, 596))
    west, east = ground_seen[:, :320], ground_seen[:, 276:]
    archive.put("west", ground(GRID.epsg, left - 2160, top + 780, 320), west, west, west)
    archive.put("east", ground(GRID.epsg, left + 600, top + 780, 320), east * 1.25, east * 1.2, east * 1.15, cloud=1.0)
    table = bench(archive, tmp_path, gamma=1.0, jpeg_quality=100)
    outcome = await make_picture(ITEM, table)
    about = metadata(outcome)
    assert len(about["scenes"]) == 2
    gain = {scene["id"]: np.array(scene["gain"]) for scene in about["scenes"]}
    assert gain["west"] / gain["east"] == pytest.approx([1.25, 1.2, 1.15], rel=0.02)
    picture = Image.open(io.BytesIO(table.lake.images.read(outcome.rows["images"][0]["sha256"], "jpg")))
    pixels = np.asarray(picture).astype(float).mean(axis=0)
    assert np.abs(pixels[:40].mean(axis=0) / pixels[-40:].mean(axis=0) - 1).max() < 0.03


async def test_the_provider_s_own_picture_as_the_simple_option(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("scene", frame, 0.15, 0.1, 0.05)
    shas = [(await make_picture(ITEM, bench(archive, tmp_path, assets=kind, white=0.3558, gamma=1.0))).rows["images"][0]
            for kind in ("bands", "visual")]  # fmt: skip
    lake = Lake(tmp_path / "lake")
    pictures = [np.asarray(Image.open(io.BytesIO(lake.images.read(row["sha256"], "jpg")))).astype(int) for row in shas]
    assert np.abs(pictures[0] - pictures[1]).max() <= 2
    assert shas[1]["request_url"].endswith("visual.tif")
    assert {path.split("/")[1] for path, _, _ in archive.ranges} == {
        "SCL.tif",
        "B04.tif",
        "B03.tif",
        "B02.tif",
        "visual.tif",
    }


async def test_what_stays_cloudy_is_rejected_with_figures(archive: Any, frame: Any, tmp_path: Any) -> None:
    for number in range(3):
        archive.put(f"scene{number}", frame, 0.1, classes=cloudy(frame, 0.3, 0.7), cloud=10.0)
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert isinstance(outcome, Rejected) and outcome.reason == "cloudy"
    figures = outcome.evidence
    assert 0.5 < figures["clear_share"] < 0.62 and figures["no_data_share"] == 0.0
    assert figures["scenes_seen"] == 3 and figures["scenes_looked_at"] == 3 and figures["scenes_used"] == 1
    assert figures["min_clear_share"] == 0.9
    assert (figures["place_id"], figures["viewport"]) == ("p", "centre")
    assert not list((tmp_path / "lake" / "images").rglob("*.jpg"))


async def test_no_more_scenes_than_allowed(archive: Any, ground: Any, tmp_path: Any) -> None:
    left, top = GRID.left_m // 60 * 60, -(-GRID.top_m // 60) * 60
    for number, west in enumerate((-2520, -1980, -1500)):  # each shows a strip more to the east
        archive.put(f"scene{number}", ground(GRID.epsg, left + west, top + 780, 320), 0.1, cloud=float(number))
    for most, share in ((1, 1.0), (8, 1.0)):
        outcome = await make_picture(
            ITEM, bench(archive, tmp_path, max_scenes=most, max_no_data_share=1.0, min_clear_share=0)
        )
        assert len(metadata(outcome)["scenes"]) <= most
        assert sum(scene["share"] for scene in metadata(outcome)["scenes"]) == pytest.approx(share, abs=0.03)


async def test_what_nobody_saw_is_rejected_with_figures(archive: Any, ground: Any, tmp_path: Any) -> None:
    half = ground(GRID.epsg, GRID.left_m // 60 * 60 - 2400, -(-GRID.top_m // 60) * 60 + 780, 320)
    archive.put("half", half, 0.1)
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert isinstance(outcome, Rejected) and outcome.reason == "no_data"
    assert outcome.evidence["no_data_share"] == pytest.approx(0.5, abs=0.05)


async def test_clouds_just_outside_are_widened_into_the_picture(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("scene", frame, 0.1, classes=cloudy(frame, -0.2, 0.0))
    shares = [
        metadata(await make_picture(ITEM, bench(archive, tmp_path, buffer_m=metres, min_clear_share=0)))["clear_share"]
        for metres in (0, 60)
    ]
    assert shares[0] == pytest.approx(1.0, abs=0.007)  # the grid may begin inside a pixel of 20 m
    assert shares[0] - shares[1] == pytest.approx(6 / SIZE, abs=0.007)


@pytest.mark.parametrize("narrow", [1, 2])
async def test_a_strip_between_the_points_is_filled_too(archive: Any, frame: Any, tmp_path: Any, narrow: int) -> None:
    classes = np.full((frame.size // 2, frame.size // 2), 4, np.uint8)
    classes[:, 90 : 90 + narrow] = 0  # though its footprint says otherwise
    archive.put("torn", frame, 0.1, classes=classes)
    archive.put("whole", frame, 0.1, cloud=5.0)
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path, buffer_m=0, speck_m=0)))
    assert [scene["id"] for scene in about["scenes"]] == ["torn", "whole"]
    assert about["no_data_share"] == 0.0 and about["clear_share"] == 1.0


async def test_viewports_that_show_the_same_are_pictures_of_their_own(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("scene", frame, 0.1)
    table = bench(archive, tmp_path)
    rows = [(await make_picture({**ITEM, "viewport": name}, table)).rows["images"][0] for name in ("centre", "twin")]
    assert rows[0]["image_id"] != rows[1]["image_id"] and rows[0]["sha256"] == rows[1]["sha256"]


@pytest.mark.parametrize("case", ["unsigned", "no ranges", "inside"])
async def test_a_closed_way_to_the_files_is_no_last_word_on_a_place(
    archive: Any, frame: Any, tmp_path: Any, case: str
) -> None:
    hrefs = {"SCL": "http://10.0.0.8/SCL.tif"} if case == "inside" else None
    archive.put("scene", frame, 0.1, hrefs=hrefs)
    table = bench(archive, tmp_path)
    if case == "unsigned":
        stac = archive.client(sas_url=None)
        table = WorkerContext(stac, table.lake, table.settings)
    if case == "no ranges":
        archive.faults["scene/SCL.tif"] = lambda _: Response(b"whole", 200, media_type="image/tiff")
    with pytest.raises(ServiceError) as caught:
        await make_picture(ITEM, table)
    said = {"unsigned": "services.stac.sas_url", "no ranges": "gives no byte ranges", "inside": "will not read from"}
    assert said[case] in str(caught.value)
    archive.put("open", frame, 0.1, cloud=5.0)
    if case != "unsigned":  # then all files are closed
        assert [scene["id"] for scene in metadata(await make_picture(ITEM, table))["scenes"]] == ["open"]


async def test_no_scenes_are_rejected_with_the_search(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("too cloudy", frame, cloud=60.0)
    archive.put("too early", frame, when=datetime(2020, 1, 1, tzinfo=UTC))
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert isinstance(outcome, Rejected) and outcome.reason == "no_scenes"
    searched = outcome.evidence["searched"]
    assert (searched["from"], searched["to"], searched["max_cloud_percent"]) == ("2023-05-01", "2023-09-30", 20.0)
    [west, south, east, north] = searched["boxes"][0]
    assert west < 13.4 < east and south < 52.5 < north


async def test_a_place_may_fail_by_a_file_that_is_gone_only_if_no_other_is_there(
    archive: Any, frame: Any, tmp_path: Any
) -> None:
    for missing in ("SCL", "B03"):
        archive.items.clear()
        archive.put("gone", frame, 0.1)
        archive.put("there", frame, 0.1, cloud=5.0)
        del archive.files[f"gone/{missing}.tif"]
        about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
        assert [scene["id"] for scene in about["scenes"]] == ["there"]
    archive.items[:] = archive.items[:1]
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert isinstance(outcome, Rejected) and outcome.reason == "no_usable_scene"
    assert "not_found" in outcome.evidence["unusable_scenes"]["gone"]


@pytest.mark.parametrize("trouble", ["signing", "missing", "garbage"])
async def test_the_trouble_of_a_host_is_a_failure_and_never_a_reject(
    archive: Any, frame: Any, tmp_path: Any, lasting: Any, trouble: str
) -> None:
    archive.put("one", frame, 0.1)
    archive.put("other", frame, 0.1, cloud=5.0)
    files = dict(archive.files)
    match trouble:
        case "signing":
            archive.faults["token"] = lasting(404, "no such account")
        case "missing":
            archive.files.clear()
        case "garbage":
            archive.files = dict.fromkeys(files, b"sorry" * 5000)
    table = bench(archive, tmp_path)
    with pytest.raises(ServiceError) as caught:
        await make_picture(ITEM, table)
    assert caught.value.kind in ("expired", "outage")
    assert {"signing": "services.stac.sas_url", "missing": "not_found", "garbage": "index"}[trouble] in str(
        caught.value
    )
    archive.faults, archive.files = {}, files
    assert isinstance(await make_picture(ITEM, table), Kept)
    # A host that gives other files is believed when it has not these.
    archive.files = {name: data for name, data in files.items() if "SCL" not in name}
    outcome = await make_picture(ITEM, table)
    assert isinstance(outcome, Rejected) and outcome.reason == "no_usable_scene"


async def test_what_was_read_before_a_kill_is_not_read_again(archive: Any, frame: Any, tmp_path: Any) -> None:
    for number in range(3):
        archive.put(f"scene{number}", frame, 0.1, cloud=float(number))
    endpoint = archive.client()._endpoint

    def context(since_s: float = 0.0) -> WorkerContext:
        store = ResponseStore(tmp_path / "responses.sqlite")
        stac = RecallingStac(Connection("stac", endpoint), StageResponses(store, "collect.satellite", since_s))
        return WorkerContext(stac, Lake(tmp_path / "lake"), SatelliteSettings(size_px=SIZE))

    first = await make_picture(ITEM, context())
    asked = archive.asked.total()
    again = await make_picture(ITEM, context())  # nothing was committed: the next run does the item again
    assert again.rows["images"][0]["sha256"] == first.rows["images"][0]["sha256"]
    assert asked > 5 and archive.asked.total() == asked
    # What is older than the last run that ended well does not count any more.
    assert isinstance(await make_picture(ITEM, context(time.time())), Kept) and archive.asked.total() == 2 * asked


@pytest.mark.parametrize(("missing", "count"), [("SCL", 15), ("B03", 8)])
async def test_missing_files_do_not_use_up_what_is_meant_for_clouds(
    archive: Any, frame: Any, tmp_path: Any, missing: str, count: int
) -> None:
    for number in range(count):
        archive.put(f"gone{number:02d}", frame, 0.1)
        del archive.files[f"gone{number:02d}/{missing}.tif"]
    archive.put("there", frame, 0.1, cloud=9.0)
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert [scene["id"] for scene in about["scenes"]] == ["there"]
    assert about["scenes_looked_at"] == count + 1


async def test_what_the_bands_of_a_scene_lack_is_had_from_another(archive: Any, frame: Any, tmp_path: Any) -> None:
    red = np.full((frame.size, frame.size), 0.1)
    red[:, 200:] = 0.0  # its class map says otherwise
    archive.put("torn", frame, red, red, red)
    archive.put("whole", frame, 0.1, cloud=9.0)
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert about["no_data_share"] == 0.0 and about["clear_share"] == 1.0
    assert "whole" in [scene["id"] for scene in about["scenes"]]
    archive.items.pop()
    outcome = await make_picture(ITEM, bench(archive, tmp_path))
    assert isinstance(outcome, Rejected) and outcome.reason == "no_data"
    assert outcome.evidence["no_data_share"] > 0.05


async def test_a_hole_filled_with_cloud_is_not_clear(archive: Any, frame: Any, tmp_path: Any) -> None:
    red = np.full((frame.size, frame.size), 0.1)
    red[:, 150:] = 0.0
    archive.put("torn", frame, red, red, red, classes=cloudy(frame, 0.0, 0.2))
    archive.put("patch", frame, 0.1, classes=cloudy(frame, 0.2, 1.0), cloud=9.0)
    outcome = await make_picture(ITEM, bench(archive, tmp_path, min_clear_share=0.9))
    assert isinstance(outcome, Rejected) and outcome.reason == "cloudy"


async def test_of_one_scene_processed_twice_the_last_is_taken(archive: Any, frame: Any, tmp_path: Any) -> None:
    for name, baseline in (("S2_T33UUU_20210603", "03.01"), ("S2_T33UUU_20230811", "05.00")):
        archive.put(name, frame, 0.1, baseline=baseline, properties={"s2:mgrs_tile": "33UUU"})
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert [scene["id"] for scene in about["scenes"]] == ["S2_T33UUU_20230811"]
    del archive.files["S2_T33UUU_20230811/SCL.tif"]
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert [scene["id"] for scene in about["scenes"]] == ["S2_T33UUU_20210603"]


async def test_an_archive_that_answers_another_question_is_not_believed(
    archive: Any, frame: Any, tmp_path: Any
) -> None:
    archive.put("asked for", frame, 0.1, cloud=19.0)
    archive.put("cloud", frame, 0.1, cloud=20.0)
    archive.put("old", frame, 0.1)
    archive.put("nameless", frame, 0.1)
    archive.items[1]["properties"]["eo:cloud_cover"] = 20.0
    archive.items[3]["id"] = 7
    served = archive.client()
    search = served.search

    async def careless(*args: Any) -> list[dict[str, Any]]:
        rows = await search(*args)
        for row in rows:
            if row["id"] == "cloud":
                row["properties"]["eo:cloud_cover"] = 95.0
            if row["id"] == "old":
                row["properties"]["datetime"] = "2019-07-01T10:00:00Z"
        return rows

    served.search = careless
    table = bench(archive, tmp_path)
    scenes, seen, unusable = await find_scenes(served, GRID, table.settings)
    assert ([scene.id for scene in scenes], seen) == (["asked for"], 4)
    assert sorted(unusable.values()) == ["95 % cloud, which was not asked for", "no id",
                                         "of 2019-07-01, which was not asked for"]  # fmt: skip


async def test_a_picture_of_more_scenes_than_may_be_says_so(archive: Any, ground: Any, tmp_path: Any) -> None:
    left, top = GRID.left_m // 60 * 60, -(-GRID.top_m // 60) * 60
    for row in range(2):
        for column in range(2):
            part = ground(GRID.epsg, left - 60 + column * 960, top + 60 - row * 960, 96)
            archive.put(f"part{row}{column}", part, 0.1)
    outcome = await make_picture(ITEM, bench(archive, tmp_path, max_scenes=2))
    assert isinstance(outcome, Rejected) and outcome.reason == "no_data"
    assert (outcome.evidence["scenes_needed"], outcome.evidence["max_scenes"]) == (4, 2)


async def test_damaged_files_and_strange_items_are_passed_over(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("cut", frame, *[ROUGH] * 3)
    archive.files["cut/B02.tif"] = archive.files["cut/B02.tif"][:3000]  # then ranges lie past its end: 416
    archive.put("html", frame, 0.1)
    archive.files["html/SCL.tif"] = b"<html>" * 4000
    archive.put("inside", frame, 0.1, hrefs={"B04": "http://10.0.0.8/secret.tif"})
    archive.put("file", frame, 0.1, hrefs={"SCL": "file:///etc/passwd"})
    archive.put(
        "odd", frame, 0.1, properties={"datetime": "2023-07-01T10:00:00Z", "proj:epsg": 32610, "proj:code": None}
    )
    archive.put("good", frame, 0.1, cloud=9.0)
    archive.items.append({"id": "bare", "properties": {"datetime": "2023-07-01T10:00:00Z", "eo:cloud_cover": 0}})
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert [scene["id"] for scene in about["scenes"]] == ["good"]
    assert about["scenes_seen"] == 7


@pytest.mark.parametrize("status", [429, 500, 504])
async def test_faults_that_pass_change_nothing(
    archive: Any, frame: Any, tmp_path: Any, passing: Any, status: int
) -> None:
    archive.put("scene", frame, 0.1)
    calm = (await make_picture(ITEM, bench(archive, tmp_path))).rows["images"][0]
    archive.asked.clear()
    for name in ("search", "token", "scene/SCL.tif", "scene/B04.tif"):
        archive.faults[name] = passing(status, "Too Many Requests" if status == 429 else "upstream")
    rough = (await make_picture(ITEM, bench(archive, tmp_path))).rows["images"][0]
    assert (rough["sha256"], rough["image_id"]) == (calm["sha256"], calm["image_id"])


async def test_an_outage_is_a_failure_to_retry_not_a_reject(
    archive: Any, frame: Any, tmp_path: Any, lasting: Any
) -> None:
    archive.put("scene", frame, 0.1)
    archive.put("other", frame, 0.1, cloud=5.0)
    for name in ("search", "token", "scene/SCL.tif", "scene/B02.tif"):
        archive.faults = {name: lasting(503, "try later")}
        with pytest.raises(ServiceError) as caught:
            await make_picture(ITEM, bench(archive, tmp_path))
        assert caught.value.retryable and "SECRET" not in str(caught.value)


async def test_signatures_are_renewed_when_the_host_refuses_them(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("scene", frame, 0.1)
    table = bench(archive, tmp_path)
    await make_picture(ITEM, table)
    assert archive.asked["token"] == 1  # one for all files of the container
    archive.signature = 2
    assert isinstance(await make_picture(ITEM, table), Kept)
    assert archive.asked["token"] == 2
    wrong = json.dumps({"token": "se=x&sig=WRONG", "msft:expiry": "2030-01-01T00:00:00Z"})
    archive.faults["token"] = lambda count: Response(wrong, media_type="application/json")
    archive.signature = 3
    with pytest.raises(ServiceError) as caught:
        await make_picture(ITEM, table)
    assert caught.value.kind == "expired"  # a failure, tried again on the next run
    assert "WRONG" not in str(caught.value) and "sig=" not in str(caught.value)


async def test_a_host_without_ranges_and_one_with_wrong_ones(archive: Any, frame: Any, tmp_path: Any) -> None:
    archive.put("whole", frame, 0.1)
    archive.put("good", frame, 0.1, cloud=5.0)
    archive.faults["whole/SCL.tif"] = lambda count: Response(archive.files["whole/SCL.tif"], media_type="image/tiff")
    about = metadata(await make_picture(ITEM, bench(archive, tmp_path)))
    assert [scene["id"] for scene in about["scenes"]] == ["good"]
    archive.faults["good/SCL.tif"] = lambda count: PlainTextResponse("x", 206, {"content-range": "bytes 5-5/9"})
    with pytest.raises(ServiceError):
        await make_picture(ITEM, bench(archive, tmp_path))


def places(**columns: list[Any]) -> Any:
    schema = pl.from_arrow(TABLES["places"].schema.empty_table()).schema  # type: ignore[union-attr]
    frame = pl.DataFrame(columns)
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in schema.items() if name not in columns]

    class Tables:
        def frame(self, name: str) -> pl.DataFrame:
            if name == "checks":
                return pl.DataFrame(schema={"subject_id": pl.String, "news": pl.Int64})
            assert name == "places"
            return frame.with_columns(missing)

    return Tables()


def test_one_item_a_place_and_viewport() -> None:
    wide = Viewport(name="wide", metres_per_pixel=20.0, east=0.5)
    settings = CollectSettings(satellite=SatelliteSettings(size_px=500, viewports=(Viewport(), wide)))
    found = items(places(place_id=["a", "b"], lat=[1.0, 2.0], lon=[3.0, 4.0]), settings)
    assert found["id"].to_list() == ["a:centre", "b:centre", "a:wide", "b:wide"]
    assert found["metres_per_pixel"].to_list() == [10.0, 10.0, 20.0, 20.0]
    assert found["east"].to_list() == [0.0, 0.0, 0.5, 0.5]
    off = CollectSettings(satellite=SatelliteSettings(enabled=False))
    assert items(places(place_id=["a"], lat=[1.0], lon=[3.0]), off).height == 0


def test_places_of_a_city_share_its_pictures() -> None:
    settings = CollectSettings(
        satellite=SatelliteSettings(viewports=(Viewport(), Viewport(name="half", metres_per_pixel=5.0)))
    )
    found = items(
        places(
            place_id=["b", "a", "c"], lat=[1.0, 1.1, 2.0], lon=[3.0, 3.1, 4.0], city_id=["7", "7", None],
            city_lat=[1.05, 1.05, None], city_lon=[3.05, 3.05, None], viewport_km=[30.0, 30.0, None],
        ),
        settings,
    )  # fmt: skip
    rows = {row["id"]: row for row in found.iter_rows(named=True)}
    assert set(rows) == {"city-7:centre", "city-7:half", "c:centre", "c:half"}
    city = rows["city-7:centre"]
    assert (city["place_id"], city["lat"], city["lon"], city["metres_per_pixel"]) == ("a", 1.05, 3.05, 15.0)
    assert rows["city-7:half"]["metres_per_pixel"] == 7.5
    assert rows["c:centre"]["metres_per_pixel"] == 10.0


def test_what_makes_a_picture_another_one() -> None:
    plain = CollectSettings()
    more = CollectSettings(
        panoramas=3, satellite=SatelliteSettings(viewports=(Viewport(), Viewport(name="wide", metres_per_pixel=20.0)))
    )
    assert identity(plain) == identity(more)  # a further viewport redoes nothing
    assert identity(plain) != identity(CollectSettings(satellite=SatelliteSettings(end=date(2023, 8, 1))))
    assert plain.identity() == CollectSettings(satellite=SatelliteSettings(gamma=1.0)).identity()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"start": "2023-10-01", "end": "2023-09-01"}, "lies after"),
        ({"viewports": [{"name": "a"}, {"name": "a"}]}, "named 'a'"),
        ({"viewports": [{"name": "A b"}]}, "small letters"),
        ({"viewports": []}, "at least 1"),
        ({"masked_classes": [0, 12]}, "not a scene class"),
        ({"masked_classes": [8]}, "no data"),
        ({"assets": "b04"}, "bands"),
    ],
)
def test_wrong_settings_are_explained(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SatelliteSettings(**wrong)
