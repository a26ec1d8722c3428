"""Photos of a user's table as rows of `images`: read or fetched, checked to the last pixel, stored without metadata.

What a row becomes depends on the row, the rules for pictures, and the file or address it names. A file's size and
time are part of its item: a file that was missing or is replaced is looked at again by the next run.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from schemas.settings.ingest import IngestSettings
from tasks.ingest.embedded import picture_source
from tasks.ingest.files import PictureFolder
from tasks.ingest.photo import Photo, prepare
from tasks.ingest.refusal import Refusal
from tasks.lake import Lake
from tasks.lake.withdrawn import REASON as WITHDRAWN
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.computing import computing
from tasks.runtime.runner import Kept, Outcome, Rejected, Resources, Stage, WorkerSetup
from tasks.services import ServiceError, safe_url
from tasks.services.rate_budget import RateBudget
from tasks.services.web import NotPublic, Pictures

NAME = "ingest"
_FROM_TABLE = ("lat", "lon", "source_id", "sequence_id", "licence", "creator", "attribution", "split", "purpose")


@dataclass(frozen=True)
class Job:
    """What the rows of a table are worked with."""

    dataset: str
    folder: Path
    settings: IngestSettings
    names: Mapping[str, str]  # field -> the table's own name of its column, for messages
    embedded: str | None = None  # the column of Parquet that holds the pictures
    rate_budget: RateBudget | None = None  # of the requests all workers may make together

    def identity(self) -> dict[str, Any]:
        """Only the rules for pictures: what else was set has become part of each row's item."""
        return self.settings.picture.identity()


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    lake: Lake
    pictures: PictureFolder
    web: Pictures
    job: Job
    withdrawn: Withdrawn = field(default_factory=Withdrawn)


def open_context(job: Job, setup: WorkerSetup) -> WorkerContext:
    contact = setup.connections.stac.contact  # the same for every host
    web = Pictures(job.settings.web, job.settings.picture.max_file_mb, contact, job.rate_budget)
    return WorkerContext(setup.lake, picture_source(job.folder, job.embedded), web, job, Withdrawn.of(setup.lake))


async def work(item: dict[str, Any], context: WorkerContext) -> Outcome:
    """The row's picture in the lake, or why it is refused. A host that is out of reach raises: tried again later."""
    if item["refusal"] is not None:
        evidence = json.loads(item["refusal"])
        return Rejected(evidence.pop("reason"), evidence)
    rules = context.job.settings.picture
    if item["url"]:
        got = await _fetch(item["url"], context)
    else:
        got = await asyncio.to_thread(context.pictures.read, item["file"], int(rules.max_file_mb * 1e6))
    # Decoding takes long enough to keep the other rows of this worker waiting. In few threads: each keeps some of the
    # memory it once needed.
    picture = await computing.run(prepare, got, item, rules) if isinstance(got, bytes) else got
    if isinstance(picture, Refusal):
        evidence = picture.evidence(item["row"])
        names = context.job.names
        evidence.setdefault("column", names["url"] if item["url"] else names.get("path") or names["id"])
        evidence.setdefault("given", safe_url(item["url"]) if item["url"] else item["file"])
        return Rejected(picture.reason, evidence)
    sha256 = await asyncio.to_thread(context.lake.images.put, picture.data, picture.extension)
    row = image_row(item, picture, sha256, context)
    why = context.withdrawn.discarded(row, context.lake)
    return Rejected(WITHDRAWN, {"why": why, "row": item["row"]}) if why else Kept({"images": [row]})


async def _fetch(url: str, context: WorkerContext) -> bytes | Refusal:
    try:
        return (await context.web.fetch(url)).body
    except ServiceError as error:
        if error.retryable:
            raise
        return _refusal_of(error)


def _refusal_of(error: ServiceError) -> Refusal:
    """What an answer means for the row for good."""
    if isinstance(error, NotPublic):
        return Refusal("url_not_public", error.message)
    status = error.status or 0
    host_says = f"the host says {status}"
    if error.kind == "not_found":
        return Refusal("url_not_found", host_says)
    if error.kind in ("auth", "expired", "banned"):
        return Refusal("url_refused", host_says)
    if 300 <= status < 400:
        return Refusal("url_moved", f"{host_says}, it is elsewhere now")
    if 200 <= status < 300:
        return Refusal("not_an_image", error.message)
    if error.kind == "bad_response":
        return Refusal("too_big", error.message)  # the only answer that is cut off by us
    return Refusal("url_bad_answer", host_says if status else error.message)


def image_row(item: dict[str, Any], picture: Photo, sha256: str, context: WorkerContext) -> dict[str, Any]:
    """The picture's row. What the table says wins over what the camera wrote."""
    captured_at = datetime.fromisoformat(item["captured_at"]) if item["captured_at"] else picture.taken_at
    angle = item["compass_angle"] if item["compass_angle"] is not None else picture.compass_angle
    notes = [*json.loads(item["notes"] or "[]"), *picture.notes]
    return {
        "image_id": context.lake.name(context.job.dataset, item["source_id"]),
        "kind": picture.kind,
        **{name: item[name] for name in _FROM_TABLE},
        "source": context.job.dataset,
        "compass_angle": angle,
        "captured_at": captured_at,
        "fetched_at": datetime.now(UTC),
        "request_url": safe_url(item["url"]) if item["url"] else item["file"],
        "http_status": 200 if item["url"] else None,
        "sha256": sha256,
        "extension": picture.extension,
        "bytes": len(picture.data),
        "width": picture.width,
        "height": picture.height,
        "notes": notes or None,
        "source_sha256": picture.source_sha256,
        "source_bytes": picture.source_bytes,
    }


def stage_of(batch: pl.DataFrame) -> Stage:
    """The stage over one batch of a table."""
    return Stage(
        name=NAME,
        reads=(),
        writes=("images",),
        items=lambda inputs, job: batch,
        work=work,
        open=open_context,
        resources=Resources(cpus=1, concurrency=8, chunk=8),
        keeps_history=True,
        identity=Job.identity,
        unhashed=("row",),
    )
