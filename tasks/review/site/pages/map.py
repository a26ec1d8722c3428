"""Where pictures were taken, and places from which none was kept."""

import polars as pl

from tasks.review.site.blocks import Block, points, words
from tasks.review.site.page import Page, Source
from tasks.review.site.pictures import picture_rows
from tasks.review.site.words import place_name


def make(source: Source) -> list[Block]:
    """Kept pictures by split, rejected ones, and places with nothing."""
    rows = []
    street_view = picture_rows(source).filter(pl.col("kind") != "satellite")
    shown = ("image_id", "split", "status", "city", "region", "country", "lat", "lon")
    for one in street_view.select(shown).iter_rows(named=True):
        group = one["split"] if one["status"] == "kept" else "rejected"
        label = place_name(one["city"], one["region"], one["country"]) or one["image_id"]
        if one["lat"] is not None and one["lon"] is not None:
            rows.append((round(one["lat"], 4), round(one["lon"], 4), group, label, f"picture/{one['image_id']}"))
    street = source.read("images").filter(pl.col("kind") != "satellite").select("place_id")
    places = source.read("places").join(street, on="place_id", how="anti")
    for lat, lon, country in places.select("lat", "lon", "country_name").iter_rows():
        rows.append(
            (round(lat, 4), round(lon, 4), "nothing found", f"planned, no street view found · {country or ''}", "")
        )
    return [
        points("Where it was taken", rows),
        words("Outlines: Natural Earth, public domain. Zoom with the wheel, the buttons or + and −.", "muted"),
    ]


PAGE = Page(
    id="map",
    title="Map",
    group="Pictures",
    reads=("images", "labels", "places", "rejects", "judgements"),
    make=make,
    order=10,
)
