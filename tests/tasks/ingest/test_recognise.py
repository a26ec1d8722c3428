"""What a table is taken for: said aloud, and never a benchmark because of its columns alone."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings, SplitShares
from tasks.ingest import TableRefused
from tasks.ingest.layouts import LAYOUTS
from tasks.ingest.rows import file_names, item_batches
from tasks.ingest.survey import Survey, survey_rows

RIGHTS = {"licence": "CC BY 4.0", "attribution": "Flickr"}
SCENES = "S3_Label,S16_Label,S365_Label,Prob_indoor,Prob_natural,Prob_urban"
MP16_PRO = f"IMG_ID,AUTHOR,LAT,LON,{SCENES},neighbourhood,city,county,state,region,country,country_code,continent"
OSV5M = (
    "id,latitude,longitude,thumb_original_url,country,sequence,captured_at,lon_bin,lat_bin,cell,region,sub-region,city,"
    "land_cover,road_index,drive_side,climate,soil,dist_sea,quadtree_10_5000,quadtree_10_25000,quadtree_10_1000,"
    "quadtree_10_50000,unique_country,unique_region,unique_sub-region,unique_city,unique_cell,creator_username,creator_id"
)
IMAGEO_2 = (
    "image_id,name,address,gmap_id,description,latitude,longitude,category,avg_rating,num_of_reviews,price,hours,MISC,"
    "relative_results,url,category_list,street,city,state"
)
TRAIN = PlanSettings(split=SplitShares(train=1, validation=0, benchmark=0))


def write(folder: Path, name: str, header: str, **values: str) -> Path:
    """A table of one row; columns that are not given hold 1."""
    known = {"lat": "48.5", "latitude": "48.5", "lon": "2.5", "lng": "2.5", "longitude": "2.5", **values}
    row = ",".join(known.get(column.casefold(), "1") for column in header.split(","))
    path = folder / name
    path.write_text(f"{header}\n{row}\n")
    return path


def look(path: Path, **settings: Any) -> Survey:
    return survey_rows(path, IngestSettings(keep_lat_lon=True, **{**RIGHTS, **settings}))


def items(path: Path, **settings: Any) -> pl.DataFrame:
    chosen = IngestSettings(keep_lat_lon=True, **{**RIGHTS, **settings})
    return pl.concat(list(item_batches(survey_rows(path, chosen), "set", chosen, TRAIN)))


@pytest.mark.parametrize(
    ("name", "header", "layout", "why"),
    [
        ("mp16_places365.csv", f"IMG_ID,AUTHOR,LAT,LON,{SCENES}", "mp16-pro", "file's name says so"),
        ("MP-16 part 2.csv", "IMG_ID,LAT,LON", "mp16-pro", "file's name says so"),
        ("MP16_Pro_filtered.csv", f",{MP16_PRO}", "mp16-pro", "file's name says so"),
        ("training.csv", MP16_PRO, "mp16-pro", "country_code, continent are those of MP16-Pro"),
        ("im2gps3k_places365.csv", f"IMG_ID,AUTHOR,LON,LAT,{SCENES}", "im2gps3k", "file's name says so"),
        ("im2gps3k_addresses.csv", MP16_PRO, "im2gps3k", "file's name says so"),
        ("im2gps_places365.csv", "IMG_ID,LAT,LON", "im2gps3k", "file's name says so"),
        ("yfcc4k_places365.csv", f"IMG_ID,LAT,LON,{SCENES}", "yfcc4k", "file's name says so"),
        ("train.csv", OSV5M, "osv5m", "thumb_original_url, creator_username, quadtree_10_1000 are those of osv5m"),
        ("panoids_with_coords.csv", "nation,panoID,lat,lng", "geocomp", "panoID, nation are those of geocomp"),
        ("dataset2_info.csv", IMAGEO_2, "imageo-2", "image_id, gmap_id, address are those of imageo-2"),
        ("test.csv", "imageName,address,lat,lon", "street-view-text", "imageName, address are those of street-view"),
    ],
)
def test_what_gives_a_table_away(tmp_path: Path, name: str, header: str, layout: str, why: str) -> None:
    found = look(write(tmp_path, name, header, img_id="ab/cd/1.jpg", captured_at="1551453012000"))
    assert found.layout.name == layout
    (note,) = [note for note in found.notes if note.startswith("taken for ")]
    assert note.startswith(f"taken for {layout}: ") and why in note and "--layout" in note
    assert ("get benchmark" in note) == (layout in ("im2gps3k", "yfcc4k", "street-view-text"))


@pytest.mark.parametrize(
    "header",
    [
        "id,path,lat,lon",
        "IMG_ID,path,LAT,LON",
        "name,path,lat,lon,split",
        "photo_id,path,lat,lon",
        "photo_id,download_url,latitude,longitude",
        "id,latitude,longitude,creator_username,path",  # one column of OSV-5M, which may be anybody's
        "name,file,lat,lon,city,state,country,continent",
    ],
)
def test_tables_of_ones_own_are_plain(tmp_path: Path, header: str) -> None:
    found = look(write(tmp_path, "photos.csv", header, split="train"))
    assert (found.layout.name, found.notes) == ("plain", ())


@pytest.mark.parametrize(
    ("name", "header", "words"),
    [
        ("photos.csv", "IMG_ID,LAT,LON", ["IMG_ID, LAT, LON", "name says none of them", "--layout mp16-pro"]),
        ("camp16.csv", "IMG_ID,LAT,LON", ["name says none of them"]),
        ("yfcc25600_places365.csv", f"IMG_ID,LAT,LON,{SCENES}", ["name says none of them"]),
        ("mp16_without_im2gps3k.csv", "IMG_ID,LAT,LON", ["name says more than one of them"]),
        ("my_train.csv", "name,lat,lon", ["no column path or url", "name, lat, lon"]),
        ("my_train.csv", "name,url,lat,lon", ["no column id"]),
    ],
)
def test_what_is_not_clear_is_asked(tmp_path: Path, name: str, header: str, words: list[str]) -> None:
    with pytest.raises(TableRefused) as caught:
        look(write(tmp_path, name, header))
    assert name in str(caught.value) and all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("layout", ["mp16-pro", "im2gps3k", "yfcc4k"])
def test_the_answer_is_taken(tmp_path: Path, layout: str) -> None:
    found = look(write(tmp_path, "photos.csv", "IMG_ID,LAT,LON"), layout=layout)
    assert (found.layout.name, found.notes) == (layout, ())


def test_training_photos_stay_training_photos(darkroom: Any) -> None:
    for file in ("ab/cd/1.jpg", "ab_cd_2.jpg", "ab/cd/3.jpg"):
        darkroom.save(file, b"x")
    rows = [f"{name},48.5,2.5,1" for name in ("ab/cd/1.jpg", "ab/cd/2.jpg", "ab_cd_3.jpg")]
    table = darkroom.folder / "mp16_places365.csv"
    table.write_text("\n".join(["IMG_ID,LAT,LON,S3_Label", *rows]) + "\n")
    found = items(table)
    assert found["file"].to_list() == ["ab/cd/1.jpg", "ab_cd_2.jpg", "ab/cd/3.jpg"]
    assert found["split"].to_list() == ["train"] * 3


@pytest.mark.parametrize(
    ("name", "header"),
    [("im2gps3k.csv", "IMG_ID,path,LAT,LON,split,licence,kind"), ("train.csv", f"{OSV5M},path,split,licence,kind")],
)
def test_what_is_added_to_a_dataset_counts(darkroom: Any, name: str, header: str) -> None:
    darkroom.save("sub/own.jpg", b"x")
    said = {"path": "sub/own.jpg", "split": "validation", "licence": "CC0", "kind": "panorama"}
    row = items(write(darkroom.folder, name, header, **said)).row(0, named=True)
    assert (row["file"], row["split"], row["licence"], row["kind"]) == ("sub/own.jpg", "validation", "CC0", "panorama")


def test_rows_of_yfcc100m_are_a_benchmark_only_by_name(tmp_path: Path) -> None:
    fields = ["1"] * 25
    fields[12], fields[13], fields[16] = "2.5", "48.5", "http://host/a.jpg"
    for name in ("yfcc4k.txt", "paris.txt"):
        (tmp_path / name).write_text("\t".join(fields) + "\n")
    assert items(tmp_path / "yfcc4k.txt")["split"].to_list() == ["benchmark"]
    with pytest.raises(TableRefused, match=r"paris.txt: its 25 columns .* YFCC100M; .*--layout yfcc4k.*--split train"):
        look(tmp_path / "paris.txt")
    assert items(tmp_path / "paris.txt", split="train")["split"].to_list() == ["train"]
    assert items(tmp_path / "paris.txt", layout="yfcc4k")["split"].to_list() == ["benchmark"]


def test_braces_in_an_id_are_its_own() -> None:
    assert file_names(LAYOUTS["mp16-pro"].files, "a/{flat}.jpg") == ["a/{flat}.jpg", "a_{flat}.jpg"]


@pytest.mark.parametrize(
    ("header", "values", "file", "split"),
    [
        ("nation,panoID,lat,lng", {"panoid": "xY-9"}, "xY-9.jpg", "train"),
        (IMAGEO_2, {"image_id": "1_0x88", "url": "https://example.org/place"}, "1_0x88.jpg", "train"),
        ("imageName,address,lat,lon", {"imagename": "img/14_03.jpg"}, "img/14_03.jpg", "benchmark"),
    ],
)
def test_pictures_of_the_papers_datasets_are_found_by_their_ids(
    tmp_path: Path, header: str, values: dict[str, str], file: str, split: str
) -> None:
    """IMAGEO-2 has a column url that is a page about the place: it is no picture and is not asked."""
    path = write(tmp_path, "table.csv", header, **values)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"a picture")
    [row] = items(path).to_dicts()
    assert (row["file"], row["url"], row["split"], row["refusal"]) == (file, None, split, None)


def test_a_plain_table_named_after_a_benchmark_is_pointed_out(tmp_path: Path) -> None:
    path = write(tmp_path, "im2gps3k-local.csv", "id,path,lat,lon")
    assert "--as benchmark" in look(path).notes[0]
    assert look(path, split="benchmark").notes == ()
    with pytest.raises(TableRefused, match="says both of them"):
        look(write(tmp_path, "im2gps3k_train.csv", "IMG_ID,AUTHOR,LAT,LON"))
