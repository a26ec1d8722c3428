"""The step that makes satellite pictures: one item for every planned place and viewport.

What one item gets depends only on the place, the viewport, the settings and what the archive holds, so a run that was
killed ends with the same rows when it is started again.
"""

from typing import TYPE_CHECKING, Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.runtime.runner import Inputs, Outcome, Resources, Stage, WorkerSetup

if TYPE_CHECKING:  # what makes pictures takes half a second to import, and workers alone need it
    from tasks.collect.satellite.picture import WorkerContext

NAME = "collect.satellite"
_ITEM_COLUMNS = ("id", "place_id", "viewport", "lat", "lon", "metres_per_pixel", "size_px", "east", "north")
_NEWS = pl.col("news").fill_null(0)  # how often a reject was due to be tried again


def items(inputs: Inputs, settings: CollectSettings) -> pl.DataFrame:
    """One item a place and viewport; places of one city share the city's pictures.

    The viewport's numbers are part of the item, so that another viewport redoes no picture but its own.
    """
    wanted = settings.satellite
    subjects = _subjects(inputs.frame("places"))
    frames = []
    for viewport in wanted.viewports if wanted.enabled else ():
        # A city says how large it is: the first viewport shows it whole, the others keep their proportion to it.
        km_to_m = viewport.metres_per_pixel / wanted.viewports[0].metres_per_pixel * 1000.0 / wanted.size_px
        step_m = (pl.col("viewport_km") * km_to_m).fill_null(viewport.metres_per_pixel)
        frames.append(
            subjects.with_columns(
                id=pl.concat_str("subject", pl.lit(viewport.name), separator=":"),
                viewport=pl.lit(viewport.name),
                metres_per_pixel=step_m,
                size_px=pl.lit(wanted.size_px),
                east=pl.lit(viewport.east),
                north=pl.lit(viewport.north),
            ).select(_ITEM_COLUMNS)
        )
    if not frames:
        return pl.DataFrame(schema={"id": pl.String})
    news = inputs.frame("checks").select("news", id="subject_id")
    return pl.concat(frames).join(news, on="id", how="left", maintain_order="left").with_columns(_NEWS)


def _subjects(places: pl.DataFrame) -> pl.DataFrame:
    """What pictures are made of: each place, or each city with the first of its places to answer."""
    columns = ("subject", "place_id", "lat", "lon", "viewport_km")
    alone = places.filter(pl.col("city_id").is_null()).with_columns(
        subject="place_id", viewport_km=pl.lit(None, dtype=pl.Float64)
    )
    cities = (
        places.filter(pl.col("city_id").is_not_null())
        .sort("place_id")
        .unique("city_id", keep="first", maintain_order=True)
        .with_columns(
            subject=pl.concat_str(pl.lit("city"), "city_id", separator="-"),
            lat=pl.coalesce("city_lat", "lat"),
            lon=pl.coalesce("city_lon", "lon"),
        )
    )
    return pl.concat([alone.select(columns), cities.select(columns)])


def identity(settings: CollectSettings) -> dict[str, Any]:
    """The settings that make a picture another one; viewports stand in the items."""
    fields = settings.satellite.identity()
    return {name: value for name, value in fields.items() if name not in ("enabled", "size_px", "viewports")}


def open_context(settings: CollectSettings, setup: WorkerSetup) -> "WorkerContext":
    from tasks.collect.satellite.picture import open_worker

    return open_worker(NAME, settings.satellite, setup)


async def work(item: dict[str, Any], context: "WorkerContext") -> Outcome:
    """The item's picture, or why there is none."""
    from tasks.collect.satellite.picture import make_picture

    return await make_picture(item, context)


STAGE = Stage(
    name=NAME,
    reads=("places", "checks"),
    writes=("images",),
    items=items,
    work=work,
    open=open_context,
    # Half waiting, half computing; a picture being made takes some hundred megabytes.
    resources=Resources(cpus=1, concurrency=2, chunk=1),
    services=("stac",),
    identity=identity,
)
