"""Street-view pictures for every planned place, with licence, creator and sha256.

What one place gets depends only on the place, the settings and what the service holds, so a run that was killed
ends with the same rows when it is started again.
"""

import json
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate
from tasks.collect.download import Unusable
from tasks.collect.place_pictures import PlacePictures
from tasks.collect.previous import UNHASHED, ended_upstream, prepared_with, with_what_it_has
from tasks.collect.providers.provider import open_providers
from tasks.collect.responses import StageResponses
from tasks.collect.search import PlaceSearch
from tasks.collect.targets import Target, collect_targets, targets_of
from tasks.collect.tiles import in_tile_order
from tasks.collect.worker import MOST, VERSION, WorkerContext
from tasks.lake import Lake
from tasks.lake.withdrawn import REASON as WITHDRAWN
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Stage, WorkerSetup

NAME = "collect"


def items(inputs: Inputs, settings: CollectSettings) -> pl.DataFrame:
    """One item a place. The split is left out: moving a place to another split does not fetch it again."""
    places = inputs.frame("places", "place_id", "lat", "lon").rename({"place_id": "id"})
    if settings.panoramas + settings.photos == 0:
        places = places.clear()  # satellite pictures alone are wanted
    # Neighbours follow each other, so that they find their vector tiles in the memory of a worker.
    ordered = places.sort(in_tile_order(places["lat"], places["lon"]), maintain_order=True)
    return with_what_it_has(ordered, inputs, NAME, prepared_with(settings, VERSION))


def open_context(settings: CollectSettings, setup: WorkerSetup) -> WorkerContext:
    return WorkerContext(
        open_providers(setup.connections, settings),
        setup.lake,
        settings,
        responses=StageResponses.of(setup, NAME),
        ended=setup.shared,
        withdrawn=Withdrawn.of(setup.lake),
    )


async def work(item: dict[str, Any], context: WorkerContext) -> Outcome:
    """The place's pictures and what it still lacks, or why it has none."""
    async with context.limiter.slot():
        return await _collect(item, context)


async def _collect(item: dict[str, Any], context: WorkerContext) -> Outcome:
    targets, pictures = targets_of(context.settings), PlacePictures(item, context)

    def open_search(half_size_m: float) -> PlaceSearch:
        return context.search(item["lat"], item["lon"], half_size_m, since_s=pictures.since_s)

    async def take(candidate: Candidate) -> dict[str, Any]:
        row = image_row(item["id"], candidate, context.lake)
        why = context.withdrawn.why(row)
        if why is None:
            row |= await pictures.take(candidate)
            why = context.withdrawn.discarded(row, context.lake)
        if why is not None:
            raise Unusable(WITHDRAWN, why)
        return row

    await collect_targets(targets, context.settings.half_sizes_m, open_search, take)
    pictures.settle()
    rows = [row for target in targets for row in target.rows]
    short = [target for target in targets if len(target.rows) < target.wanted]
    gaps = [gap_row(item["id"], target) for target in short]
    lacking = {"gaps": gaps} if gaps else {}
    return Kept({**lacking, "images": rows}) if rows else _rejected(short, lacking)


def image_row(place_id: str, candidate: Candidate, lake: Lake) -> dict[str, Any]:
    """The picture's row in `images`, but for the facts of its bytes.

    The place is part of the id: two places may be answered by the same picture, and each row needs its own key so
    that either place can be redone alone. The second one is removed later as an exact duplicate.
    """
    creator = candidate.creator or "unknown"
    return {
        "image_id": lake.name(candidate.source, candidate.source_id, place_id),
        "kind": candidate.kind,
        "place_id": place_id,
        "lat": candidate.lat,
        "lon": candidate.lon,
        "source": candidate.source,
        "source_id": candidate.source_id,
        "sequence_id": candidate.sequence_id,
        "compass_angle": candidate.compass_angle,
        "licence": candidate.licence,
        "creator": creator,
        # The licence asks for a way to the work; no model or tool is shown this column.
        "attribution": f"Image {candidate.source_id} by {creator} on {candidate.platform}, {candidate.licence}",
        "captured_at": candidate.captured_at,
        "metadata_json": json.dumps(
            {
                "camera_type": candidate.camera_type,
                "quality": candidate.quality,
                "distance_m": round(candidate.distance_m, 1),
                **candidate.more,
            },
            sort_keys=True,
        ),
    }


def gap_row(place_id: str, target: Target) -> dict[str, Any]:
    """What a place lacks, as a row of `gaps`."""
    return {
        "place_id": place_id,
        "kind": target.kind,
        "wanted": target.wanted,
        "got": len(target.rows),
        "reason": target.reason,
        "evidence_json": json.dumps(target.evidence, sort_keys=True, ensure_ascii=False),
    }


def _rejected(targets: list[Target], rows: dict[str, list[dict[str, Any]]]) -> Rejected:
    reasons = {target.reason for target in targets}
    reason = reasons.pop() if len(reasons) == 1 else "no_usable_image"
    return Rejected(reason, {target.kind: {"reason": target.reason, **target.evidence} for target in targets}, rows)


STAGE = Stage(
    name=NAME,
    reads=("places", "images", "checks", "failures"),
    writes=("gaps", "images"),
    items=items,
    work=work,
    open=open_context,
    share=lambda inputs, settings: ended_upstream(inputs.lake, NAME),
    # Waiting for the service, not computing: many places at a time in each worker.
    resources=Resources(cpus=1, concurrency=MOST, chunk=2),
    services=lambda settings: settings.providers,
    unhashed=UNHASHED,
)
