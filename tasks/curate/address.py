"""The address of every picture the judge calls localizable, from the geocoder."""

from dataclasses import dataclass

import polars as pl

from schemas.settings.curate import AddressSettings
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup
from tasks.services import Geocoder


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    geocoder: Geocoder
    settings: AddressSettings


def items(inputs: Inputs, settings: AddressSettings) -> pl.DataFrame:
    """One item for each localizable picture, whatever its score: another threshold asks for no address again."""
    judged = inputs.frame("judgements").filter(pl.col("localizability") == "localizable").select("image_id")
    return judged.join(inputs.frame("images").select("image_id", "lat", "lon"), on="image_id").rename(
        {"image_id": "id"}
    )


def open_context(settings: AddressSettings, setup: WorkerSetup) -> WorkerContext:
    return WorkerContext(Geocoder(setup.connections.geocoder), settings)


async def work(item: Row, context: WorkerContext) -> Kept:
    """The address of one picture; without a country where the geocoder knows none, as at sea."""
    found = await context.geocoder.reverse(item["lat"], item["lon"], context.settings.zoom)
    row = {
        "image_id": item["id"],
        "lat": item["lat"],
        "lon": item["lon"],
        **{name: getattr(found, name, None) or None for name in ("country_code", "country", "region", "city")},
    }
    return Kept({"addresses": [row]})


STAGE = Stage(
    name="curate.address",
    section="curate.address",
    reads=("images", "judgements"),
    writes=("addresses",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=("geocoder",),
)
