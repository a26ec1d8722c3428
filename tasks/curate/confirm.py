"""A geocoder's word on the address of every localizable picture, where it is requested."""

from dataclasses import dataclass

import polars as pl

from schemas.settings.curate import ConfirmSettings
from tasks.curate.votes import localizable_pictures
from tasks.geo.names import same_city, same_country, same_region
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup
from tasks.services.geocoder import GazetteerGeocoder, Geocoder, RecallingGeocoder, open_recalling


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    geocoder: Geocoder | RecallingGeocoder | GazetteerGeocoder
    settings: ConfirmSettings


def items(inputs: Inputs, settings: ConfirmSettings) -> pl.DataFrame:
    """One item for each picture that a judge calls localizable or that none has judged, if it is on."""
    judged = localizable_pictures(inputs)
    addresses = inputs.frame("addresses").select("image_id", "lat", "lon", "country", "country_code", "region", "city")
    judged_rows = judged.join(addresses, on="image_id").rename({"image_id": "id"})
    return judged_rows if settings.enabled else judged_rows.clear()


def open_context(settings: ConfirmSettings, setup: WorkerSetup) -> WorkerContext:
    geocoder = open_recalling(setup.connections.geocoder, setup.responses())
    return WorkerContext(geocoder, settings)


async def work(item: Row, context: WorkerContext) -> Kept:
    """What the geocoder says, level by level, and whether it is what the boundaries say; null: it does not say."""
    address = await context.geocoder.reverse(item["lat"], item["lon"], context.settings.zoom)
    levels = {name: getattr(address, name, None) or None for name in ("country_code", "country", "region", "city")}
    code = item["country_code"]
    row: Row = {"image_id": item["id"], "lat": item["lat"], "lon": item["lon"], **levels}
    country = levels["country_code"] or levels["country"]
    row["same_country"] = same_country(country, code) if country and code else None
    for level, same in (("region", same_region), ("city", same_city)):
        row[f"same_{level}"] = same(levels[level], item[level], code) if levels[level] and item[level] else None
    return Kept({"confirmations": [row]})


STAGE = Stage(
    name="curate.confirm",
    section="curate.confirm",
    reads=("duplicates", "judgements", "addresses"),
    writes=("confirmations",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=lambda settings: ("geocoder",) if settings.enabled else (),
)
