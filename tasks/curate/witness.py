"""Sentinel-2's word on the position of every localizable picture, where it is asked for."""

import json
from dataclasses import dataclass

import polars as pl

from schemas.settings.curate import WitnessSettings
from tasks.curate.votes import LOCALIZABLE, combined
from tasks.geo.second_witness import contradiction, contradictions
from tasks.runtime.labelled import ON_THE_GROUND
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup
from tasks.services import Stac
from tasks.services.sentinel.ground_cover import SentinelGround


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    ground: SentinelGround


def items(inputs: Inputs, settings: WitnessSettings) -> pl.DataFrame:
    """One item for each street picture that judges call localizable, if the archive is to be asked at all."""
    judged = combined(inputs.frame("judgements"), "any").filter(pl.col("localizability") == LOCALIZABLE)
    images = ON_THE_GROUND.apply(inputs.frame("images")).select("image_id", "sha256", "lat", "lon")
    found = images.join(judged.select("image_id", "sha256", "scenes_json"), on=["image_id", "sha256"])
    found = found.filter(pl.col("lat").abs() <= 83).rename({"image_id": "id"})
    return found if settings.enabled else found.clear()


def open_context(settings: WitnessSettings, setup: WorkerSetup) -> WorkerContext:
    return WorkerContext(SentinelGround(Stac(setup.connections.stac), settings.satellite))


async def work(item: Row, context: WorkerContext) -> Kept:
    """The ground at the picture's position, and what of the picture contradicts it."""
    row: Row = {"image_id": item["id"], **{name: item[name] for name in ("sha256", "lat", "lon")}}
    found = await context.ground.cover(item["lat"], item["lon"])
    if found is not None:
        scenes = json.loads(item["scenes_json"] or "{}")
        row |= {
            **{"near_json": json.dumps(found.near), "around_json": json.dumps(found.around)},
            **{"captured_on": found.captured_on, "contradiction": contradiction(scenes, found.near, found.around)},
            "rules_json": json.dumps(contradictions(scenes, found.near, found.around)),
        }
    return Kept({"witnesses": [row]})


def identity(settings: WitnessSettings) -> dict[str, object]:
    """What a comparison depends on; how much contradiction is too much is decided with the labels."""
    return settings.satellite.identity()


STAGE = Stage(
    name="curate.witness",
    section="curate.witness",
    reads=("judgements", "images"),
    writes=("witnesses",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=2),
    services=lambda settings: ("stac",) if settings.enabled else (),
    identity=identity,
)
