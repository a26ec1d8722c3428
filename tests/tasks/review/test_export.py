"""Published snapshots, read back by the libraries their readers use; licence and attribution with every picture."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli.application import app
from schemas.errors import GeofixError, InputError
from schemas.messages import ToolCall
from schemas.settings.ingest import IngestSettings, PictureRules
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.agent.picture import open_picture
from tasks.agent.recording import Recording
from tasks.agent.toolbox import NOT_RECORDED, Toolbox
from tasks.ingest import check_dataset, ingest_table, survey_table
from tasks.ingest.photo import Photo, prepare
from tasks.lake import Lake
from tasks.lake.image_store import CorruptImage
from tasks.review import export as export_module
from tasks.review.export import export
from tasks.review.withdraw import withdraw
from tasks.runtime.runner import Context
from tasks.services import connect
from tasks.services.response_store import FILE, Keep, ResponseStore, digest_key, pack


@pytest.fixture
def snapshot(make_lake: Callable[..., Lake], snapshot_of: Callable[..., str]) -> tuple[Lake, str]:
    lake = make_lake()
    return lake, snapshot_of(lake)


def truth(lake: Lake) -> dict[str, dict[str, Any]]:
    """By picture, what must come out: its bytes' digest, position, licence and attribution."""
    images = lake.read("images").select("image_id", "licence", "attribution", "sha256")
    rows = lake.read("labels").select("image_id", "lat", "lon", "split").join(images, on="image_id")
    return {row["image_id"]: row for row in rows.to_dicts()}


def same(found: dict[str, dict[str, Any]], lake: Lake) -> None:
    wanted = truth(lake)
    assert set(found) == set(wanted) and wanted
    for image_id, row in wanted.items():
        assert {name: found[image_id][name] for name in row} == row


def test_hugging_face_datasets_reads_pictures_and_facts(
    snapshot: tuple[Lake, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(export_module, "SHARD_BYTES", 20_000)
    lake, snapshot_id = snapshot
    done = export(lake, snapshot_id, "hf", tmp_path / "hf")
    assert done.pictures == lake.read("labels").height
    loaded = datasets.load_dataset(
        str(done.folder), cache_dir=str(tmp_path / "cache")
    )  # by the card's own front matter
    assert {name: len(rows) for name, rows in loaded.items()} == dict(
        lake.read("labels").group_by("split").len().iter_rows()
    )
    told = (done.folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(done.folder)
    by_card: dict[str, Any] = {}
    exec(told, by_card)
    assert {name: len(rows) for name, rows in by_card["rows"].items()} == {n: len(r) for n, r in loaded.items()}
    assert len(list((done.folder / "data").glob("train-*.parquet"))) > 1
    found = {row["image_id"]: row for split in loaded.values() for row in split}
    same(found, lake)
    assert all(isinstance(row["image"], Image.Image) and row["image"].size == (640, 320) for row in found.values())
    raw = loaded["train"].cast_column("image", datasets.Image(decode=False))[0]
    assert hashlib.sha256(raw["image"]["bytes"]).hexdigest() == raw["sha256"]
    card = (done.folder / "README.md").read_text()
    assert "license: cc-by-sa-4.0" in card and "approved by Ada" in card and snapshot_id in card
    credits = pl.read_csv(done.folder / "ATTRIBUTION.csv")
    assert credits["attribution"].null_count() == 0 and credits.height == done.pictures


@pytest.mark.usefixtures("in_process")
def test_ingest_reads_an_export_into_another_lake(
    snapshot: tuple[Lake, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "SHARD_BYTES", 20_000)
    lake, snapshot_id = snapshot
    folder = export(lake, snapshot_id, "hf", tmp_path / "hf").folder
    rules = PictureRules(min_pixels=1, panorama_width=640, panorama_min_pixels=1)
    settings, plan, other = IngestSettings(picture=rules, keep_lat_lon=True), PlanSettings(), Lake(tmp_path / "other")
    survey = survey_table(folder, settings)
    assert check_dataset(other, survey, "set", settings, plan) == ""
    context = Context(other, connect(ServicesSettings(), {}), SpreadSettings(workers=1))
    result = ingest_table(survey, "set", settings, plan, context)
    assert result.stage.kept == survey.rows == lake.read("labels").height
    read = other.read("images").with_columns(image_id="source_id", sha256="source_sha256")
    same({row["image_id"]: row for row in read.to_dicts()}, lake)


def test_webdataset_streams_the_shards(
    snapshot: tuple[Lake, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    webdataset = pytest.importorskip("webdataset")
    monkeypatch.setattr(export_module, "SHARD_BYTES", 20_000)
    lake, snapshot_id = snapshot
    folder = export(lake, snapshot_id, "webdataset", tmp_path / "wds").folder
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    assert len(shards) > 3
    found = {}
    for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False):
        found[sample["__key__"]] = json.loads(sample["json"])
        assert hashlib.sha256(sample["jpg"]).hexdigest() == found[sample["__key__"]]["sha256"]
    same(found, lake)
    again = export(lake, snapshot_id, "webdataset", tmp_path / "again").folder
    assert [Path(one).read_bytes() for one in shards] == [one.read_bytes() for one in sorted(again.glob("*.tar"))]


def test_geopandas_reads_the_points(snapshot: tuple[Lake, str], tmp_path: Path) -> None:
    import geopandas

    lake, snapshot_id = snapshot
    frame = geopandas.read_parquet(
        export(lake, snapshot_id, "geoparquet", tmp_path / "geo").folder / "pictures.parquet"
    )
    assert frame.crs.to_epsg() == 4326
    assert [(p.y, p.x) for p in frame.geometry] == list(zip(frame["lat"], frame["lon"], strict=True))
    same({row["image_id"]: row for row in frame.to_dict("records")}, lake)


def test_mlcroissant_reads_the_records(snapshot: tuple[Lake, str], tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    lake, snapshot_id = snapshot
    folder = export(lake, snapshot_id, "croissant", tmp_path / "croissant").folder
    dataset = mlcroissant.Dataset(str(folder / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    found = {}
    for record_set in dataset.metadata.record_sets:
        for record in dataset.records(record_set.uuid):
            row = {name.rpartition("/")[2]: value for name, value in record.items()}
            row = {
                name: value.decode() if isinstance(value, bytes) else value
                for name, value in row.items()
                if name != "image"
            }
            found[row["image_id"]] = row
    same(found, lake)


def test_what_may_not_be_published_is_refused(
    make_lake: Callable[..., Lake], snapshot_of: Callable[..., str], tmp_path: Path
) -> None:
    lake = make_lake()
    waiting = snapshot_of(lake, status="pending")
    with pytest.raises(GeofixError, match="only approved"):
        export(lake, waiting, "hf", tmp_path / "out")
    good = snapshot_of(lake)
    with pytest.raises(InputError, match="hf, webdataset, geoparquet, croissant"):
        export(lake, good, "csv", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        export(lake, good, "hf", tmp_path / "full")
    row = lake.read("labels").row(0, named=True)
    lake.blobs.put(lake.images.key(row["sha256"], "jpg"), b"damaged")
    with pytest.raises(CorruptImage):
        export(lake, good, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*")), "nothing half written is left"


def test_a_withdrawn_picture_is_in_no_export(snapshot: tuple[Lake, str], tmp_path: Path) -> None:
    lake, snapshot_id = snapshot
    gone = lake.read("labels").sort("image_id").row(0, named=True)
    pixels = Image.open(io.BytesIO(lake.images.read(gone["sha256"], "jpg"))).tobytes()
    withdraw(lake, gone["image_id"], "a face", "Ada")
    done = export(lake, snapshot_id, "hf", tmp_path / "hf")
    for path in (done.folder / "data").glob("*.parquet"):
        rows = pl.read_parquet(path)
        assert gone["sha256"] not in set(rows["sha256"]) and gone["image_id"] not in set(rows["image_id"])
        stored = [Image.open(io.BytesIO(one["bytes"])).tobytes() for one in rows["image"]]
        assert stored and pixels not in stored


SERVICES = ("search.example /a", "eyes.example /b")
BOX = [100.0, 100.0, 400.0, 500.0]


def fill_store(lake: Lake, image_ids: list[str]) -> None:
    """For each picture a text and a part of it that were asked about, the text as its third try, and a map."""
    digests = dict(lake.read("images").select("image_id", "sha256").iter_rows())
    steps = []
    for image_id in image_ids:
        titles = {"results": [{"number": 1, "title": f"found for {image_id}", "url": "https://a.example"}]}
        asked: list[tuple[str, str, dict[str, Any], bytes]] = [
            (f"reverse:{image_id}|3", "text_search", {"queries": [f"words of {image_id}"]}, b""),
            (image_id, "image_search", {"bbox_2d": BOX, "picture": digests.get(image_id, "0" * 64)}, b""),
            (image_id, "static_map_query", {"center": [1.0, 2.0], "zoom": 9, "of": image_id}, b"a map"),
        ]
        for item_id, tool, arguments, picture in asked:
            question, whom = [tool, arguments, 5], SERVICES[tool == "image_search"]
            head = {"value": titles, "is_picture": bool(picture), "services": whom, "asked": question}
            steps.append(Keep("tool", digest_key(whom, *question), pack(head, picture), 1.0, None, item_id))
    ResponseStore(lake.state / FILE).apply(steps)


async def answers_of(folder: Path, pictures: dict[str, bytes]) -> dict[str, tuple[bool, bool]]:
    """By picture, whether the recording of a published set answers by its words, and by a part of its pixels."""
    recording = Recording(folder)
    tools, offered = Toolbox(responses=recording), ("text_search", "image_search")
    answered = {}
    for image_id, data in pictures.items():
        calls = (
            ToolCall("c", "text_search", json.dumps({"queries": [f"words of {image_id}"]})),
            ToolCall("c", "image_search", json.dumps({"bbox_2d": BOX})),
        )
        told = [await tools.call(call, open_picture(data), offered) for call in calls]
        assert all(image_id in one.text if one.record.succeeded else one.record.error == NOT_RECORDED for one in told)
        answered[image_id] = told[0].record.succeeded, told[1].record.succeeded
    return answered


async def test_recorded_tools_travel_with_a_snapshot_and_are_found_by_those_who_import_it(
    snapshot: tuple[Lake, str], tmp_path: Path
) -> None:
    lake, snapshot_id = snapshot
    mine = lake.read("labels").sort("image_id")["image_id"].to_list()
    fill_store(lake, [*mine, "another snapshot's"])
    done = export(lake, snapshot_id, "hf", tmp_path / "hf", SERVICES)
    assert done.tools is not None
    assert done.tools.by_tool == {"image_search": len(mine), "text_search": len(mine)}
    assert (done.tools.of_other_pictures, done.tools.pictures) == (3, len(mine))
    card = (done.folder / "README.md").read_text()
    assert "## Recorded tools" in card and "licences above do not cover these texts" in card
    everything = (done.folder / "tools.sqlite").read_bytes()
    assert all(word not in everything for word in (b"another snapshot's", b"a map", b"search.example", b"eyes.example"))

    # Pictures taken out of the published files and brought in again, panoramas among them, keep their bytes.
    rules = PictureRules(panorama_width=640, panorama_min_pixels=1000)
    pictures = {}
    for path in (done.folder / "data").glob("*.parquet"):
        for row in pl.read_parquet(path).to_dicts():
            photo = prepare(row["image"]["bytes"], row, rules)
            assert isinstance(photo, Photo) and hashlib.sha256(photo.data).hexdigest() == row["sha256"]
            pictures[row["image_id"]] = photo.data
    assert await answers_of(done.folder, pictures) == dict.fromkeys(mine, (True, True))


async def test_nothing_of_a_withdrawn_picture_is_in_published_tools(snapshot: tuple[Lake, str], tmp_path: Path) -> None:
    lake, snapshot_id = snapshot
    mine = lake.read("labels").sort("image_id")["image_id"].to_list()
    digests = dict(lake.read("images").select("image_id", "sha256").iter_rows())
    fill_store(lake, mine)
    before = export(lake, snapshot_id, "hf", tmp_path / "before", SERVICES)
    taken = withdraw(lake, mine[0], "a face", "Ada")
    assert [copy.folder for copy in taken.exports] == [str(before.folder)], "its owner is told where the copy lies"
    # Kept by a run that was under way: the store may hold it again, the published file does not.
    fill_store(lake, mine)
    after = export(lake, snapshot_id, "hf", tmp_path / "after", SERVICES)
    stored = (after.folder / "tools.sqlite").read_bytes()
    for gone in taken.image_ids:
        assert gone.encode() not in stored and digests[gone].encode() not in stored
    assert after.tools is not None and after.tools.answers == 2 * len(set(mine) - set(taken.image_ids)) > 0


def test_tools_of_a_snapshot_without_any_are_refused(snapshot: tuple[Lake, str], tmp_path: Path) -> None:
    lake, snapshot_id = snapshot
    asked = ["export", snapshot_id, "--with-tools", "--out", str(tmp_path / "hf"), "--lake", lake.uri]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code != 0 and "services.tools.mode=record" in said.output.replace("\n", "")
    assert not (tmp_path / "hf").exists() and not list(tmp_path.glob(".hf*"))


def test_the_command_writes_and_says_where(snapshot: tuple[Lake, str], tmp_path: Path) -> None:
    lake, snapshot_id = snapshot
    asked = ["export", snapshot_id, "--as", "geoparquet", "--out", str(tmp_path / "geo"), "--lake", lake.uri]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0 and str(tmp_path / "geo") in said.output.replace("\n", ""), said.output
    twice = CliRunner().invoke(app, asked)
    assert twice.exit_code == 2
