"""Parquet with the pictures inside, as the Hugging Face hub publishes benchmarks, and as we publish snapshots."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.ingest import IngestResult, TableRefused, check_dataset, embedded, ingest_table, survey_table, table
from tasks.ingest.embedded import EmbeddedPictures
from tasks.ingest.refusal import Refusal
from tasks.lake import Lake
from tasks.runtime.runner import Context
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
RIGHTS = {"licence": "CC BY 4.0", "attribution": "Photo {id} by Ana", "split": "benchmark"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def write(path: Path, pictures: list[dict[str, Any] | None], first: int = 0, **columns: list[Any]) -> Path:
    """A file as `datasets` writes it: its schema, a group of rows after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(pictures)
    places = {"latitude": [48.5 + (first + n) / 100 for n in range(count)], "longitude": [2.5] * count}
    rows = pa.table({"image": pa.array(pictures, IMAGE), **places, **columns})
    features = b'{"info": {"features": {"image": {"_type": "Image"}}}}'
    pq.write_table(rows.replace_schema_metadata({b"huggingface": features}), path, row_group_size=2)
    return path


def ingest(path: Path, lake: Lake, **settings: Any) -> IngestResult:
    chosen = IngestSettings(**{**RIGHTS, **settings})
    survey = survey_table(path, chosen)
    check_dataset(lake, survey, "set", chosen, PlanSettings())
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1))
    result = ingest_table(survey, "set", chosen, PlanSettings(), context)
    assert result.stage.total == result.stage.kept + result.stage.rejected + result.stage.skipped
    return result


def stored(lake: Lake) -> dict[str, dict[str, Any]]:
    return {row["source_id"]: row for row in lake.read("images").sort("source_id").iter_rows(named=True)}


def test_a_file_of_pictures(darkroom: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [{"bytes": darkroom.jpeg(seed=n), "path": f"{n}.jpg"} for n in range(5)]
    bad = [
        {"bytes": None, "path": "none.jpg"},
        None,
        {"bytes": b"", "path": "e.jpg"},
        {"bytes": b"GIF89a", "path": "x.gif"},
    ]
    path = write(darkroom.folder / "bench.parquet", [*good, *bad])
    result = ingest(path, lake)
    assert (result.stage.kept, result.stage.rejected) == (5, 4)
    assert result.report.refused.counts == {"no_picture": 3, "unsupported_format": 1}
    example = result.report.refused.examples["no_picture"][1]
    assert example["id"] == "bench.parquet#6" and "holds no bytes" in example["problem"]
    assert (example["row"], example["column"], example["given"]) == (7, "image", "bench.parquet#6")
    photos = stored(lake)
    assert list(photos) == [f"{n}.jpg" for n in range(5)]
    assert photos["3.jpg"]["lat"] == pytest.approx(48.53) and photos["3.jpg"]["split"] == "benchmark"
    assert photos["3.jpg"]["request_url"] == "bench.parquet#3"
    assert photos["3.jpg"]["licence"] == "CC BY 4.0" and photos["3.jpg"]["source_bytes"] == len(good[3]["bytes"])
    monkeypatch.chdir(darkroom.folder)
    assert ingest(Path("bench.parquet"), lake).stage.nothing_to_do


def test_a_folder_of_shards_with_ids_of_their_own(
    darkroom: Any, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "BATCH", 2)
    for shard in range(2):
        pictures = [{"bytes": darkroom.jpeg(seed=10 * shard + n), "path": None} for n in range(3)]
        ids = [f"id{shard}{n}" for n in range(3)]
        name = f"hub/data/train-0000{shard}-of-00002.parquet"
        write(tmp_path / name, pictures, 3 * shard, id=ids, license=["CC0", "CC0", ""])
    (tmp_path / "hub/README.md").write_text("# A benchmark")
    survey = survey_table(tmp_path / "hub", IngestSettings(**RIGHTS))  # type: ignore[arg-type]
    assert survey.rows == 6 and (survey.names["path"], survey.names["id"]) == ("image", "id")
    assert ingest(tmp_path / "hub", lake).stage.kept == 6
    photos = stored(lake)
    assert photos["id11"]["request_url"] == "data/train-00001-of-00002.parquet#1"
    assert [photos[name]["licence"] for name in ("id00", "id02")] == ["CC0", "CC BY 4.0"]
    assert len({row["sha256"] for row in photos.values()}) == 6
    write(tmp_path / "hub/data/train-00002.parquet", [None], other=["x"])
    with pytest.raises(TableRefused, match="has other columns than"):
        survey_table(tmp_path / "hub", IngestSettings(**RIGHTS))  # type: ignore[arg-type]


def test_a_folder_whose_first_file_is_cut_off_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "hub/a.parquet", [{"bytes": b"x", "path": "a.jpg"}]).read_bytes()
    (tmp_path / "hub/a.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(TableRefused, match=r"a\.parquet: is not a readable Parquet file"):
        survey_table(tmp_path / "hub", IngestSettings(**RIGHTS))  # type: ignore[arg-type]


def test_pictures_are_read_by_their_group_and_only_when_asked(
    darkroom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.parquet", [{"bytes": bytes([n]) * 1000, "path": f"{n}"} for n in range(6)])
    groups: list[int] = []
    read = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, group: int, **options: Any) -> pa.Table:
        groups.append(group)
        return read(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    survey = survey_table(path, IngestSettings(**RIGHTS))  # type: ignore[arg-type]
    assert not groups and pl.concat(survey.batches())["path"].to_list()[5] == "t.parquet#5"
    pictures = EmbeddedPictures(tmp_path, "image")
    assert [pictures.read(f"t.parquet#{n}", 2000) for n in (0, 1, 5)] == [bytes([n]) * 1000 for n in (0, 1, 5)]
    assert groups == [0, 2]
    refusals = [pictures.read(name, 10) for name in ("t.parquet#2", "t.parquet#9", "gone.parquet#0")]
    assert [why.reason for why in refusals if isinstance(why, Refusal)] == ["too_big", *["file_unreadable"] * 2]
    monkeypatch.setattr(embedded, "LARGEST_GROUP_MB", 0.001)
    with pytest.raises(TableRefused, match=r"column image holds pictures in groups of .* row_group_size=100"):
        survey_table(path, IngestSettings(**RIGHTS))  # type: ignore[arg-type]


def test_with_a_folder_of_pictures_those_of_the_file_are_left(darkroom: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [{"bytes": b"x", "path": "a.jpg"}], file=["a.jpg"])
    survey = survey_table(path, IngestSettings(**RIGHTS, images=str(darkroom.folder)))  # type: ignore[arg-type]
    assert survey.embedded is None and survey.names["path"] == "file" and "id" not in survey.names


def test_a_file_that_datasets_wrote(darkroom: Any, lake: Lake, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = [str(darkroom.save(f"{n}.jpg", seed=n)) for n in range(3)]
    rows = {"image": files, "lat": [48.5, 48.6, 48.7], "lon": [2.5] * 3, "country": ["FR"] * 3}
    made = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    made.to_parquet(tmp_path / "links.parquet")  # it names the pictures of this machine and holds none
    left_out = ingest(tmp_path / "links.parquet", Lake(tmp_path / "other")).report.refused
    assert left_out.counts == {"no_picture": 3}
    embed = datasets.table.embed_table_storage  # as for the hub
    made.with_format("arrow").map(embed, batched=True).with_format(None).to_parquet(tmp_path / "hub.parquet")
    assert ingest(tmp_path / "hub.parquet", lake).stage.kept == 3
    assert list(stored(lake)) == ["0.jpg", "1.jpg", "2.jpg"]
