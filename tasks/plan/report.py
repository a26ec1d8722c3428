"""The plan to look at: a world map and a table of quota against drawn, by country and continent."""

import hashlib
import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image, ImageDraw, ImageFont

from schemas.settings.plan import PlanSettings
from tasks.geo.atlas import CONTINENTS, countries, outlines
from tasks.lake import Lake
from tasks.plan.cities import choose_cities
from tasks.plan.stage import plan_identity, planned
from tasks.runtime.items.identity import digest
from tasks.runtime.report import MADE_FROM, Report, markdown_table, report_folder, write_files

SCALE = 2  # drawn twice as large and reduced: smooth lines without a plotting library
VERSION = 2  # raise it when the files look different for the same plan
SHOWN = 25  # rows of a table in the page; the files hold all
COLUMNS = ("place_id", "country", "city_id", "lat", "lon", "split")  # of places: what a report shows
SLICE = 50_000
SEA, LAND, COAST = (190, 210, 226), (250, 248, 241), (134, 146, 156)
# Colours a colour-blind reader can tell apart (Okabe and Ito).
SPLIT_COLOURS = {"train": (0, 114, 178), "validation": (230, 159, 0), "benchmark": (213, 94, 0)}
SOUTH_LAT, NORTH_LAT = -60.0, 84.0  # the plan leaves Antarctica out by default, and so does the map,
POLE_LAT = -90.0  # unless there are places


def report(lake: Lake, settings: PlanSettings) -> Report:
    """The report of the plan that stands in the lake."""
    made = write_report(lake.read("places", columns=COLUMNS), settings, report_folder(lake, "plan"))
    lake.blobs.push("reports/plan", last=MADE_FROM)
    return made


def write_report(places: pl.DataFrame, settings: PlanSettings, folder: Path) -> Report:
    """Write map.png, countries.csv, continents.csv and, for a plan of cities, cities.csv into the folder."""
    by_country = quota_table(places, settings)
    by_continent = continent_table(by_country)
    make = {
        "map.png": lambda: world_map(places),
        "countries.csv": lambda: by_country.write_csv().encode(),
        "continents.csv": lambda: by_continent.write_csv().encode(),
    }
    text = [
        "# The plan: quota against drawn",
        markdown_table(_with_total(by_continent)),
        f"## The {min(SHOWN, by_country.height)} countries with the largest quota",
        markdown_table(by_country.head(SHOWN)),
    ]
    if settings.mode == "cities":
        by_city = city_table(places, settings)
        make["cities.csv"] = lambda: by_city.write_csv().encode()
        text += [f"## Cities: {by_city.height}", markdown_table(by_city.head(SHOWN))]
    about = [plan_identity(settings), _content(places)]
    files = write_files(folder, digest("plan report", VERSION, *about), make)
    text.append("\n".join(f"- `{path}`" for path in files.values()))
    return Report("\n\n".join(text) + "\n", files)


def _png(picture: Image.Image, width: int) -> bytes:
    buffer = io.BytesIO()
    picture.resize((width, picture.height // SCALE), Image.Resampling.LANCZOS).save(buffer, "PNG")
    return buffer.getvalue()


def _content(places: pl.DataFrame) -> str:
    """What the files show of the places, in a few letters. A slice at a time: as one text it would be a large one."""
    content = hashlib.sha256()
    rows = places.select("place_id", "lat", "lon", "split").sort("place_id")
    for number, part in enumerate(rows.iter_slices(SLICE)):
        content.update(part.write_csv(include_header=number == 0).encode())
    return content.hexdigest()


def _drawn(places: pl.DataFrame, by: str) -> pl.DataFrame:
    return places.group_by(by).agg(
        pl.len().cast(pl.Int64).alias("drawn"),
        *((pl.col("split") == split).sum().cast(pl.Int64).alias(split) for split in SPLIT_COLOURS),
    )


def quota_table(places: pl.DataFrame, settings: PlanSettings) -> pl.DataFrame:
    """One row per planned country: continent, quota, places drawn, and places per split; largest quota first."""
    quotas = planned(settings)
    table = countries().select("iso2", "name", continent=pl.col("continent").replace(CONTINENTS))
    table = table.join(pl.DataFrame({"iso2": list(quotas), "quota": list(quotas.values())}), on="iso2")
    table = table.join(_drawn(places, "country"), left_on="iso2", right_on="country", how="left")
    table = table.with_columns(pl.col("drawn", *SPLIT_COLOURS).fill_null(0))
    return table.sort(["quota", "iso2"], descending=[True, False])


def continent_table(by_country: pl.DataFrame) -> pl.DataFrame:
    """The same, summed by continent, with the number of countries that have a quota."""
    return (
        by_country.group_by("continent")
        .agg(
            (pl.col("quota") > 0).sum().cast(pl.Int64).alias("countries"),
            pl.col("quota", "drawn", *SPLIT_COLOURS).sum(),
        )
        .sort("continent")
    )


def city_table(places: pl.DataFrame, settings: PlanSettings) -> pl.DataFrame:
    """One row per city: how many people, how wide its viewport, quota and places drawn; the most people first."""
    table = choose_cities(settings).select(
        "name", "country", pl.col("city_id").cast(pl.String), pl.col("people").cast(pl.Int64), "viewport_km", "quota"
    )
    table = table.join(_drawn(places, "city_id"), on="city_id", how="left")
    table = table.with_columns(pl.col("drawn", *SPLIT_COLOURS).fill_null(0))
    return table.sort(["people", "city_id"], descending=[True, False])


def _with_total(by_continent: pl.DataFrame) -> pl.DataFrame:
    total = by_continent.select(pl.lit("**all**").alias("continent"), pl.exclude("continent").sum())
    return pl.concat([by_continent, total])


def world_map(places: pl.DataFrame, width: int = 1800) -> bytes:
    """A PNG of the world with a dot for every place, coloured by split."""
    far_south = (places["lat"] < SOUTH_LAT).any()
    picture = _empty_map(width, POLE_LAT if far_south else SOUTH_LAT).copy()
    pen = ImageDraw.Draw(picture)
    per_degree = width * SCALE / 360
    # Small dots for large plans, so that they do not run together.
    radius = max(1.0, min(6.0, 300 / max(places.height, 1) ** 0.5)) * SCALE / 2
    order = places.sort(pl.col("split").replace_strict({s: i for i, s in enumerate(SPLIT_COLOURS)}))
    for lat, lon, split in order.select("lat", "lon", "split").iter_rows():
        px, py = (lon + 180) * per_degree, (NORTH_LAT - lat) * per_degree
        pen.ellipse((px - radius, py - radius, px + radius, py + radius), fill=SPLIT_COLOURS[split])
    _legend(pen, order["split"], (NORTH_LAT - SOUTH_LAT) * per_degree)
    return _png(picture, width)


@lru_cache(maxsize=1)
def _empty_map(width: int, south_lat: float) -> Image.Image:
    """Land, coasts and borders."""
    per_degree = width * SCALE / 360
    picture = Image.new("RGB", (width * SCALE, round((NORTH_LAT - south_lat) * per_degree)), SEA)
    pen = ImageDraw.Draw(picture)
    shape = outlines()
    x, y = (shape.lon + 180) * per_degree, (NORTH_LAT - shape.lat) * per_degree
    # Only outer rings: a hole in one region is another region, or too small an inlet to see.
    for ring in np.flatnonzero(shape.ring_outer).tolist():
        span = slice(shape.start[ring], shape.start[ring + 1])
        corners = np.column_stack([x[span], y[span]]).round().astype(int)
        corners = corners[np.concatenate([[True], (np.diff(corners, axis=0) != 0).any(axis=1)])]
        if len(corners) > 2:
            pen.polygon([tuple(c) for c in corners.tolist()], fill=LAND)
    _borders(pen, x, y)
    return picture


def _legend(pen: ImageDraw.ImageDraw, splits: pl.Series, bottom: float) -> None:
    """Which colour is which split, and how many places it has, in the empty South Pacific."""
    font, line = ImageFont.load_default(14 * SCALE), 22 * SCALE
    top = bottom - (len(SPLIT_COLOURS) + 0.5) * line
    for i, (split, colour) in enumerate(SPLIT_COLOURS.items()):
        middle = top + (i + 0.5) * line
        pen.ellipse((12 * SCALE, middle - 5 * SCALE, 22 * SCALE, middle + 5 * SCALE), fill=colour)
        text = f"{split}: {(splits == split).sum():,}"
        pen.text((30 * SCALE, middle), text, fill=(60, 60, 60), font=font, anchor="lm")


def _borders(pen: ImageDraw.ImageDraw, x: np.ndarray, y: np.ndarray) -> None:
    """Coasts and country borders: sides of rings that no other region of the same country shares."""
    shape = outlines()
    country = {code: i for i, code in enumerate(sorted(set(shape.country)))}
    of_ring = np.array([country[c] for c in shape.country])[shape.ring_region]
    inner = np.ones(len(x), dtype=bool)
    inner[shape.start[1:] - 1] = False
    head = np.flatnonzero(inner)
    owner = np.repeat(of_ring, np.diff(shape.start) - 1)
    at = np.rint((shape.lat + 90) * 1e5).astype(np.int64) * 40_000_000 + np.rint((shape.lon + 180) * 1e5).astype(
        np.int64
    )
    low, high = np.minimum(at[head], at[head + 1]), np.maximum(at[head], at[head + 1])
    order = np.lexsort((high, low, owner))
    same = (np.diff(low[order]) == 0) & (np.diff(high[order]) == 0) & (np.diff(owner[order]) == 0)
    shared = np.zeros(len(order), dtype=bool)
    shared[1:] |= same
    shared[:-1] |= same
    for i in head[order[~shared]].tolist():
        pen.line((x[i], y[i], x[i + 1], y[i + 1]), fill=COAST, width=1)
