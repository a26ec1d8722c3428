"""A new export of a table does not empty its dataset by mistake, and what leaves is told."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.ingest import IngestResult, TableRefused, check_dataset, ingest_table, survey_table
from tasks.lake import Lake
from tasks.runtime.runner import Context
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")


def ingest(path: Path, lake: Lake, **settings: Any) -> IngestResult:
    chosen = IngestSettings(**{"keep_lat_lon": True, "split": "train", **settings})
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1), lambda tick: None)
    found = survey_table(path, chosen)
    check_dataset(lake, found, "set", chosen, PlanSettings())
    return ingest_table(found, "set", chosen, PlanSettings(), context)


def photos(lake: Lake) -> set[str]:
    return set(lake.read("images")["source_id"])


def test_rows_that_are_refused_now_do_not_empty_a_dataset(darkroom: Any, tmp_path: Path) -> None:
    darkroom.save("a.jpg")
    lake = Lake(tmp_path / "lake")
    good = [{"id": f"g{n}", "lat": 48.5 + n / 100} for n in range(8)]
    assert ingest(darkroom.plain(good), lake).dropped == 0
    all_ids = {one["id"] for one in good}

    # Half of the positions in a foreign notation: not enough to refuse the table by itself.
    mixed = [*({**one, "lat": f'"{one["lat"]}'.replace(".", ",") + '"'} for one in good[:5]), *good[5:]]
    mixed += [{"id": f"n{n}"} for n in range(3)]
    said = r"set' of this lake has 8 photos, and 5 .*: 5 are refused now.* \(first: row 2, bad_position: lat '48,5'.*"
    with pytest.raises(TableRefused, match=said):
        ingest(darkroom.plain(mixed), lake)
    # The pictures are elsewhere now.
    with pytest.raises(TableRefused, match=r"5 of them would leave it.*missing_file.*--replace"):
        ingest(darkroom.plain([*({**one, "path": "old/a.jpg"} for one in good[:5]), *good[5:]]), lake)
    assert photos(lake) == all_ids and lake.read("rejects").is_empty(), "nothing was written"

    # A few that leave are told; all of them may, if the user says so.
    few = ingest(darkroom.plain([{**good[0], "lat": 95}, *good[1:7]]), lake)
    assert (few.dropped, few.retired) == (1, 1) and photos(lake) == {f"g{n}" for n in range(1, 7)}
    assert few.to_dict()["dropped"] == 1
    ended = ingest(darkroom.plain([{**one, "licence": ""} for one in good]), lake, replace=True)
    assert ended.dropped == 6 and photos(lake) == set()


def test_another_table_of_the_same_name_and_ids(darkroom: Any, tmp_path: Path) -> None:
    darkroom.save("a.jpg")
    lake = Lake(tmp_path / "lake")
    paris = [{"id": n, "lat": 48.5 + n / 100, "lon": 2.5} for n in range(1, 7)]
    cape_town = [{**one, "lat": -33.9, "lon": 18.5} for one in paris]
    ingest(darkroom.plain(paris), lake)
    said = (
        r"has 6 photos, and 6 of them would leave it: .* 6 of the same id were taken elsewhere, .*\(first: row 2, 1: "
        r"-33.9, 18.5, in the lake 48.51, 2.5\); .* another dataset another --name, .* --replace"
    )
    with pytest.raises(TableRefused, match=said):
        ingest(darkroom.plain(cape_town), lake)
    assert set(lake.read("images")["lon"]) == {2.5}, "nothing was written"
    # Most of them elsewhere or gone; and neither, where a few are corrected by more and all by some metres.
    with pytest.raises(TableRefused, match=r"4 of them would leave it: .* 2 are not in this file"):
        ingest(darkroom.plain([*cape_town[:2], *paris[2:4]]), lake)
    corrected = [*cape_town[:2], *({**one, "lat": one["lat"] + 0.001} for one in paris[2:])]
    assert ingest(darkroom.plain(corrected), lake).stage.kept == 6
    assert ingest(darkroom.plain(cape_town), lake, replace=True).stage.kept == 4


def test_a_table_of_decimal_commas_is_refused_whole(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    rows = [[f"p{n}", "a.jpg", f"48,{n}", f"2,{n}", "CC0", "Ana"] for n in range(8)]
    path = darkroom.folder / "t.csv"
    path.write_text("\n".join(";".join(row) for row in (["id", "path", "lat", "lon", "licence", "creator"], *rows)))
    said = (
        r"none of its 8 rows can be taken: 8 bad_position \(first: row 2, .*: lat '48,0' .*; write .* a decimal point"
    )
    with pytest.raises(TableRefused, match=said):
        check_dataset(None, survey_table(path, IngestSettings()), "set", IngestSettings(), PlanSettings())


def test_a_file_that_changes_while_it_is_read_retires_nothing(darkroom: Any, tmp_path: Path) -> None:
    darkroom.save("a.jpg")
    lake = Lake(tmp_path / "lake")
    path = darkroom.plain([{"id": f"g{n}"} for n in range(6)])
    ingest(path, lake)
    chosen = IngestSettings(keep_lat_lon=True, split="train")
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1), lambda tick: None)
    found = survey_table(path, chosen)
    check_dataset(lake, found, "set", chosen, PlanSettings())
    shutil.copy(darkroom.plain([{"id": "g0"}], "other.csv"), path)
    with pytest.raises(TableRefused, match="was changed while it was read; run the command again"):
        ingest_table(found, "set", chosen, PlanSettings(), context)
    assert len(photos(lake)) == 6
    assert lake.scan("images").filter(pl.col("tombstone").is_not_null()).collect().is_empty()
