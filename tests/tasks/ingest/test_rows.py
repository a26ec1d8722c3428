"""Rows: each defect that shows without opening a picture, each layout, splits, ids and paths."""

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings, SplitShares
from tasks.geo.cell_split import SPLITS, cell_number, split_of_cells
from tasks.imaging.tags import read_time
from tasks.ingest import TableRefused, check_dataset, dataset_name
from tasks.ingest import table as tables
from tasks.ingest.files import Found, PictureFolder
from tasks.ingest.refusal import FIXES, Refusal
from tasks.ingest.rows import ITEM, item_batches
from tasks.ingest.survey import survey_rows

PLAN = PlanSettings(split=SplitShares(train=1, validation=0, benchmark=0))


def items(path: Path, plan: PlanSettings = PLAN, **settings: Any) -> pl.DataFrame:
    chosen = IngestSettings(**{"keep_lat_lon": True, **settings})
    return pl.concat([pl.DataFrame(schema=ITEM), *item_batches(survey_rows(path, chosen), "set", chosen, plan)])


def refusals(frame: pl.DataFrame) -> dict[int, dict[str, Any]]:
    return {row: json.loads(text) for row, text in frame.select("row", "refusal").drop_nulls().iter_rows()}


@pytest.mark.parametrize(
    ("row", "reason", "column", "words"),
    [
        ({"id": ""}, "no_id", "id", "empty"),
        ({"id": "x" * 501}, "bad_id", "id", "too long"),
        ({"id": "1.23e+17"}, "id_damaged", "id", "float"),
        ({"id": "4711.0"}, "id_damaged", "id", "float"),
        ({"lat": ""}, "no_position", "lat", "empty"),
        ({"lon": ""}, "no_position", "lon", "empty"),
        ({"lat": '"48,85"'}, "bad_position", "lat", "decimal point"),
        ({"lat": "N48"}, "bad_position", "lat", "not a number"),
        ({"lat": "nan"}, "no_position", "lat", "empty"),
        ({"lon": "inf"}, "bad_position", "lon", "not a number"),
        ({"lat": 139.7, "lon": 35.7}, "out_of_range", "lat", "outside -90..90"),
        ({"lat": 139.7, "lon": 135.7}, "out_of_range", "lat", "outside -90..90"),
        ({"lat": 39.7, "lon": 335.7}, "out_of_range", "lon", "outside -180..180"),
        ({"lat": 0, "lon": 0}, "null_island", "lat", "placeholder"),
        ({"lat": 0.001, "lon": -0.002}, "null_island", "lat", "placeholder"),
        ({"licence": ""}, "no_licence", "licence", "empty"),
        ({"licence": "NULL"}, "no_licence", "licence", "empty"),
        ({"creator": ""}, "no_attribution", "creator", "empty"),
        ({"creator": "None"}, "no_attribution", "creator", "empty"),
        ({"split": "holdout"}, "bad_split", "split", "none of train, validation, benchmark"),
        ({"kind": "hologram"}, "bad_kind", "kind", "none of photo, panorama"),
        ({"path": "", "url": ""}, "no_picture", "path and url", "neither"),
        ({"path": "", "url": "ftp://host/a.jpg"}, "bad_url", "url", "only http"),
        ({"path": "", "url": "file:///etc/passwd"}, "bad_url", "url", "only http"),
        ({"path": "", "url": "https://"}, "bad_url", "url", "only http"),
        ({"path": "", "url": "http://[::1/a"}, "bad_url", "url", "only http"),
        ({"path": "b.jpg"}, "missing_file", "path", "no such file"),
        ({"path": "a.jpg/x"}, "missing_file", "path", "no such file"),
        ({"path": "sub"}, "file_unreadable", "path", "not a plain file"),
        ({"path": "../secret.txt"}, "path_escapes", "path", "outside the picture folder"),
        ({"path": "sub/../../secret.txt"}, "path_escapes", "path", "outside the picture folder"),
        ({"path": "/etc/hostname"}, "path_escapes", "path", "outside the picture folder"),
        ({"path": "link.jpg"}, "path_escapes", "path", "outside the picture folder"),
        ({"path": "away/secret.txt"}, "path_escapes", "path", "outside the picture folder"),
        ({"path": "sub\\" + "b" * 300 + ".jpg"}, "file_unreadable", "path", "too long"),
        ({"path": "", "url": "ftp://user:SECRETPW@h/x.jpg"}, "bad_url", "url", "only http"),
        ({"path": "", "url": "user:SECRETPW@h/x.jpg"}, "bad_url", "url", "only http"),
        ({"id": "esc\x1b[31mRED"}, "bad_id", "id", "unprintable"),
        ({"path": "pipe"}, "file_unreadable", "path", "not a plain file"),
    ],
)
def test_each_defect(darkroom: Any, row: dict[str, Any], reason: str, column: str, words: str) -> None:
    darkroom.save("a.jpg", b"x")
    (darkroom.folder / "sub").mkdir()
    (darkroom.folder.parent / "secret.txt").write_text("secret")
    (darkroom.folder / "link.jpg").symlink_to(darkroom.folder.parent / "secret.txt")
    (darkroom.folder / "away").symlink_to(darkroom.folder.parent)
    os.mkfifo(darkroom.folder / "pipe")
    found = items(darkroom.plain([{}, row, {}]))
    assert found.height == 3 and found["row"].to_list() == [2, 3, 4]
    said = refusals(found)
    assert list(said) == [3]
    assert (said[3]["reason"], said[3]["column"], said[3]["row"]) == (reason, column, 3)
    assert words in said[3]["problem"] and said[3]["fix"] == FIXES[reason]
    assert "secret" not in said[3]["problem"]
    told = str(found.row(1, named=True))
    assert "SECRETPW" not in told and "\x1b" not in told and "\\u001b" not in told and "\\x1b" not in told


def test_with_a_folder_of_pictures_no_address_is_asked(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    row = {"id": "p0", "picture": "a.jpg", "url": "https://host.example/a.jpg", "lat": 48.5, "lon": 2.5}
    path = darkroom.table([[*row.values(), "CC0", "Ana"]], [*row, "licence", "creator"])
    assert items(path)["url"].to_list() == [row["url"]]  # without --images the address is what is known
    found = items(path, images=str(darkroom.folder))
    (told,) = refusals(found).values()
    assert told["reason"] == "no_picture" and "call the column of file names path" in told["problem"]
    assert found["url"].null_count() == found.height == 1


def test_a_good_row_has_everything(darkroom: Any) -> None:
    file = darkroom.save("sub/a.jpg", b"12345")
    extra = {"captured_at": "2020-05-01T12:00:00+02:00", "compass_angle": -90, "split": "Test", "kind": "360"}
    row = items(darkroom.plain([{"path": "sub/a.jpg", "sequence": "s1", **extra}])).row(0, named=True)
    assert row["id"] == "set/p0" and row["source_id"] == "p0" and row["file"] == "sub/a.jpg" and row["url"] is None
    assert (row["lat"], row["lon"], row["licence"], row["creator"]) == (48.5, 2.5, "CC0", "Ana")
    assert row["attribution"] == "Photo p0 by Ana, CC0"
    assert (row["captured_at"], row["compass_angle"]) == ("2020-05-01T10:00:00+00:00", 270.0)
    assert (row["split"], row["kind"], row["sequence_id"]) == ("benchmark", "panorama", "s1")
    assert (row["size"], row["mtime_ns"]) == (5, file.stat().st_mtime_ns)
    assert row["refusal"] is None and row["notes"] is None


def test_optional_values_that_make_no_sense_are_noted(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    row = items(darkroom.plain([{"captured_at": "yesterday", "compass_angle": "north"}])).row(0, named=True)
    assert row["refusal"] is None and row["captured_at"] is None and row["compass_angle"] is None
    assert json.loads(row["notes"]) == ["captured_at_unreadable: yesterday", "compass_angle_unreadable: north"]


def test_licence_and_attribution_from_the_options(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    path = darkroom.plain([{}, {"licence": "", "creator": ""}])
    given = {"licence": "CC BY 4.0", "attribution": "{id} / {creator} / {licence}"}
    one, two = items(path, **given).iter_rows(named=True)
    assert (one["licence"], one["attribution"]) == ("CC0", "p0 / Ana / CC0"), "the row's own word counts more"
    assert two["refusal"] is not None, "an attribution that names the creator needs one"
    two = items(path, **{**given, "attribution": "the town archive"}).row(1, named=True)
    assert (two["licence"], two["attribution"], two["creator"]) == ("CC BY 4.0", "the town archive", None)


def test_repeated_ids(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    same, other = {"id": "same"}, {"id": "other"}
    found = items(darkroom.plain([same, other, {"id": "solo"}, same, {**other, "lat": 49.5}, same]))
    assert found["id"].n_unique() == 6
    said = refusals(found)
    assert {row: one["reason"] for row, one in said.items()} == {
        3: "conflicting_id", 5: "duplicate_id", 6: "conflicting_id", 7: "duplicate_id"
    }  # fmt: skip
    assert "row 2" in said[5]["problem"] and "disagree" in said[3]["problem"]


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"lat": 30.0, "lon": -45.0}, "mid_ocean", "no land within"),
        ({"lat": -40.5, "lon": -120.5}, "mid_ocean", "no land within"),
        ({"lat": 65.0, "lon": -22.0, "country": "Iceland"}, None, ""),
        ({"lat": 43.6, "lon": 5.0, "country": "FR"}, None, ""),  # a bay of Marseille
        ({"lat": -37.1, "lon": -12.3}, None, ""),  # Tristan da Cunha, an island of 200 people
        ({"lat": 52.52, "lon": 13.40, "country": "France"}, "other_country", "52.52, 13.4, lies in DE"),
        ({"lat": 52.52, "lon": 13.40, "country": "de"}, None, ""),
        ({"lat": 48.58, "lon": 7.85, "country": "France"}, None, ""),  # Kehl, on the border
        ({"lat": -21.1, "lon": 55.5, "country": "France"}, None, ""),  # Réunion
        ({"lat": 52.52, "lon": 13.40, "country": "Atlantis"}, None, ""),
    ],
)
def test_positions_against_the_map(darkroom: Any, row: dict[str, Any], reason: str | None, words: str) -> None:
    darkroom.save("a.jpg", b"x")
    rows = [{"country": "FR"}, row, {"country": ""}]
    said = refusals(items(darkroom.plain(rows), keep_lat_lon=False))
    assert {number: one["reason"] for number, one in said.items()} == ({3: reason} if reason else {})
    assert reason is None or words in said[3]["problem"]
    assert not refusals(items(darkroom.plain(rows))), "with --keep-lat-lon the user's word counts"


def test_exchanged_columns(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    paris = [{"lat": 2.35 + n / 1000, "lon": 48.85} for n in range(10)]  # at sea, east of Somalia
    path = darkroom.plain(paris)
    with pytest.raises(TableRefused, match=r"lat and lon look exchanged: 10 of 10 .* row 2.*--swap-lat-lon"):
        items(path, keep_lat_lon=False)
    found = items(path, keep_lat_lon=False, swap_lat_lon=True)
    assert found.row(0, named=True)["lat"] == 48.85 and found.row(0, named=True)["lon"] == 2.35
    assert items(path).row(0, named=True)["lat"] == 2.35, "the user's word counts"
    right = darkroom.plain([{"lat": one["lon"], "lon": one["lat"]} for one in paris])
    with pytest.raises(TableRefused, match="leave --swap-lat-lon away"):
        items(right, keep_lat_lon=False, swap_lat_lon=True)
    with pytest.raises(ValueError, match="contradict"):
        IngestSettings(swap_lat_lon=True, keep_lat_lon=True)


def test_splits_by_whole_cells_as_the_plan_does(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    rows = [{"lat": 40.5 + n // 12, "lon": -5.5 + n % 12} for n in range(96)]
    plan = PlanSettings(seed=3, buffer_km=0)
    frame = items(darkroom.plain(rows), plan)
    cells = cell_number(frame["lat"].to_numpy(), frame["lon"].to_numpy())
    assert frame["split"].to_list() == [SPLITS[n] for n in split_of_cells(3, plan.split, 0)[cells]]
    assert set(frame["split"]) == set(SPLITS)
    # Within the buffer of another split's cell a photo would give that split away.
    edge = [{"lat": 40.99 + n // 12, "lon": -5.5 + n % 12} for n in range(96)]
    near = items(darkroom.plain(edge), PlanSettings(seed=3, buffer_km=10))
    reasons = {one["reason"] for one in refusals(near).values()}
    assert reasons == {"near_other_split"} and 5 < len(refusals(near)) < 90
    assert not refusals(items(darkroom.plain(edge), PlanSettings(seed=3, buffer_km=10), split="validation"))
    # It is said before.
    chosen, plan = IngestSettings(keep_lat_lon=True), PlanSettings(seed=3, buffer_km=10)
    survey = survey_rows(darkroom.plain(edge), chosen)
    count = len(refusals(near))
    forecast = f"{count} of 96 rows will be refused: {count} near_other_split"
    assert check_dataset(None, survey, "set", chosen, plan) == forecast
    assert check_dataset(None, survey, "set", chosen.model_copy(update={"split": "validation"}), plan) == ""


LAYOUTS = {
    "mp16-pro": (
        "IMG_ID,LAT,LON,neighbourhood,city,county,state,region,country,continent",
        "3f/d8/4706405.jpg,48.85,2.35,,Paris,,Ile-de-France,,France,Europe",
    ),
    "im2gps3k": (
        "IMG_ID,AUTHOR,LAT,LON,S3_Label,S16_Label,S365_Label,Prob_indoor,Prob_natural,Prob_urban",
        "104123_abc_22_1@N00.jpg,1@N00,48.85,2.35,0,1,2,0.1,0.2,0.7",
    ),
    "yfcc4k": (
        "IMG_ID,AUTHOR,LAT,LON,S3_Label,S16_Label,S365_Label,Prob_indoor,Prob_natural,Prob_urban",
        "6871190223.jpg,2@N00,48.85,2.35,0,1,2,0.1,0.2,0.7",
    ),
    "osv5m": (
        "id,latitude,longitude,thumb_original_url,country,sequence,captured_at,lon_bin,lat_bin,cell,region,sub-region,"
        "city,land_cover,road_index,drive_side,climate,soil,dist_sea,quadtree_10_1000,unique_country,creator_username,"
        "creator_id",
        "3859149887465501,48.85,2.35,https://host/x.jpg?oh=sig,FR,sq1,1551453012000,1,2,\"(0, 8)\",Ile-de-France,,Paris"
        ",4,4.6,1,15,3,0.1,12,FR,roadroid,111336221091714.0",
    ),
}  # fmt: skip
FILES = {
    "mp16-pro": ["3f/d8/4706405.jpg", "3f_d8_4706405.jpg"],
    "im2gps3k": ["104123_abc_22_1@N00.jpg", "im2gps3ktest/104123_abc_22_1@N00.jpg"],
    "yfcc4k": ["6871190223.jpg", "yfcc4k/6871190223.jpg"],
    "osv5m": ["3859149887465501.jpg", "00/3859149887465501.jpg"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_well_known_layouts(darkroom: Any, layout: str) -> None:
    header, line = LAYOUTS[layout]
    table = darkroom.folder.parent / f"{layout}_places365.csv"
    table.write_text(f"{header}\n{line}\n")
    for file in FILES[layout]:
        path = darkroom.save(file, b"x")
        for asked in ("auto", layout):
            found = survey_rows(table, IngestSettings(layout=asked, licence="CC BY 2.0", attribution="Flickr"))
            assert found.layout.name == layout
        row = items(table, images=str(darkroom.folder), licence="CC BY 2.0", attribution="Flickr").row(0, named=True)
        assert row["refusal"] is None, row["refusal"]
        assert (row["lat"], row["lon"], row["file"]) == (48.85, 2.35, file)
        assert row["source_id"] == line.partition(",")[0]
        assert row["split"] == ("benchmark" if layout in ("im2gps3k", "yfcc4k") else "train")
        path.unlink()
    missing = refusals(items(table, images=str(darkroom.folder), licence="CC BY 2.0", attribution="Flickr"))
    assert missing[2]["reason"] == "missing_file"


def test_osv5m_knows_its_licence_and_falls_back_to_addresses(darkroom: Any) -> None:
    header, line = LAYOUTS["osv5m"]
    table = darkroom.folder / "test.csv"
    table.write_text(f"{header}\n{line}\n")
    row = items(table).row(0, named=True)
    assert row["url"] == "https://host/x.jpg?oh=sig" and row["file"] is None
    assert row["licence"] == "CC BY-SA 4.0" and row["creator"] == "roadroid" and row["sequence_id"] == "sq1"
    assert row["attribution"] == "Image 3859149887465501 by roadroid on Mapillary, CC BY-SA 4.0"
    assert row["captured_at"].startswith("2019-03-01T15:10:12")


def test_yfcc4k_in_its_original_form(darkroom: Any) -> None:
    fields = [""] * 25
    fields[0], fields[1], fields[4], fields[5] = "17", "6871190223", "Jane+Doe", "2012-02-25 21:55:57.0"
    fields[12], fields[13], fields[16] = "2.35", "48.85", "http://farm8.host/a.jpg"
    fields[17], fields[18], fields[24] = "Attribution License", "http://creativecommons.org/licenses/by/2.0/", "0"
    table = darkroom.folder / "yfcc4k.txt"
    table.write_text("\t".join(fields) + "\n")
    row = items(table).row(0, named=True)
    assert (row["source_id"], row["creator"], row["licence"]) == ("6871190223", "Jane Doe", "Attribution License")
    assert (row["lat"], row["lon"], row["split"]) == (48.85, 2.35, "benchmark")
    assert row["url"] == "http://farm8.host/a.jpg" and row["captured_at"].startswith("2012-02-25T21:55:57")
    darkroom.save("6871190223.jpg", b"x")
    assert items(table, images=str(darkroom.folder)).row(0, named=True)["file"] == "6871190223.jpg"


def test_a_layout_that_does_not_fit_is_refused(darkroom: Any) -> None:
    with pytest.raises(TableRefused, match="this is not the osv5m layout"):
        items(darkroom.plain([{}]), layout="osv5m")


def test_portions_are_the_table_in_pieces(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    darkroom.save("a.jpg", b"x")
    path = darkroom.plain([{} for _ in range(25)])
    whole, chosen = items(path), IngestSettings()
    monkeypatch.setattr(tables, "BATCH", 10)
    parts = list(item_batches(survey_rows(path, chosen), "set", chosen, PLAN))
    assert [part.height for part in parts] == [10, 10, 5]
    assert pl.concat(parts).equals(whole)


def test_absolute_and_windows_paths_inside_the_folder(darkroom: Any) -> None:
    darkroom.save("sub/a.jpg", b"x")
    folder = PictureFolder(darkroom.folder)
    for name in (str(darkroom.folder / "sub/a.jpg"), "sub\\a.jpg", "./sub/../sub/a.jpg"):
        found = folder.find(name)
        assert isinstance(found, Found) and found.name == "sub/a.jpg", name
    assert folder.read("sub/a.jpg", 10) == b"x"
    too_big = folder.read("sub/a.jpg", 0)
    assert isinstance(too_big, Refusal) and too_big.reason == "too_big"


@given(st.text(max_size=60))
def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    root = tmp_path_factory.getbasetemp() / "inside"
    root.mkdir(exist_ok=True)
    for path in (name, f"../{name}", f"/{name}", f"x/../../{name}"):
        found = PictureFolder(root).find(path)
        assert isinstance(found, Refusal), path


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2020-05-01", "2020-05-01T00:00:00+00:00"),
        ("2020-05-01T10:00:00Z", "2020-05-01T10:00:00+00:00"),
        ("2020-05-01 10:00:00.25+01:00", "2020-05-01T09:00:00.250000+00:00"),
        ("2019:06:07 08:09:10", "2019-06-07T08:09:10+00:00"),
        ("1551453012000", "2019-03-01T15:10:12+00:00"),
        ("1551453012", "2019-03-01T15:10:12+00:00"),
        ("0000:00:00 00:00:00", None),
        ("12", None),
        ("99999999999999999999", None),
        ("0001-01-01T00:00:00+14:00", None),
    ],
)
def test_moments(text: str, iso: str | None) -> None:
    found = read_time(text)
    assert (found.isoformat() if found else None) == iso


@pytest.mark.parametrize(("file", "name"), [("My photos (2).csv", "My-photos--2"), ("a.b.parquet", "a.b")])
def test_names_of_datasets(file: str, name: str) -> None:
    assert dataset_name(Path(file), IngestSettings()) == name
    assert dataset_name(Path(file), IngestSettings(name="own")) == "own"


def test_names_that_cannot_be() -> None:
    for file in ("---.csv", "mapillary.csv", "фото.csv"):
        with pytest.raises(TableRefused, match="--name"):
            dataset_name(Path(file), IngestSettings())
    for name in ("a/b", "../x", "", "Mapillary", "x" * 65, "a:b"):
        with pytest.raises(ValueError, match="must be letters"):
            IngestSettings(name=name)
