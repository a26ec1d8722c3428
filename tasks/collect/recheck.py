"""Looking again: which collected pictures the source has deleted or changed, and which places wait for better ones.

No place is redone here. A picture that is gone upstream is ended at once, so that no later snapshot holds it. Whatever
is new raises the `news` of a picture or a place; places whose sum of news has grown are redone by the street-view
stage, which keeps what it has and fetches what is new or missing. The bytes of a changed picture have come with the
check; they are kept for its place (`responses.py`).

A picture whose metadata lives, but which its host does not have or gives only broken, or which the service does not
offer, is `unavailable`. That is no news: it was not deleted, its bytes are stored, and a later check may find it again.

A picture is due when it was last seen `collect.refresh.after_days` ago; or at once, when its file is lost, or when it
was found to be deleted for another place. `nth` counts how often that came to pass, so an item that was looked at is
finished until it is due again, and a run without anything due asks nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect import satellite, street_view
from tasks.collect.batches import Batches
from tasks.collect.compare import Known, compared
from tasks.collect.hosts import Hosts, Refused
from tasks.collect.previous import DELETED, is_lost, refused_before
from tasks.collect.providers.provider import StreetViewProvider, open_providers
from tasks.collect.responses import StageResponses
from tasks.lake.reading import newest_versions
from tasks.runtime.runner import Inputs, Kept, Outcome, Resources, Stage, WorkerSetup
from tasks.services import ServiceError

NAME = "collect.recheck"
AT_ONCE = 50  # ids of one request of most providers
_NEWS = frozenset({"changed", "deleted", "lost", "look_again"})
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    providers: Mapping[str, StreetViewProvider]  # by name
    known: Mapping[str, Batches[str]]  # likewise, the addresses of pictures by source id
    settings: CollectSettings
    responses: StageResponses = field(default_factory=StageResponses)  # of the stage that redoes places
    hosts: Hosts = field(default_factory=Hosts)


def items(inputs: Inputs, settings: CollectSettings) -> pl.DataFrame:
    """What is due: pictures, places that got less than was wanted, and rejected satellite pictures."""
    days = settings.refresh.after_days
    before = _NEVER if days is None else datetime.now(UTC) - timedelta(days=days)
    checks = inputs.frame("checks").select(
        "status", "nth", "news", "checked_at", id="subject_id", check_etag="etag", check_sha256="source_sha256"
    )
    images = _images(inputs, settings)
    due = pl.concat(
        [
            _due_images(images, checks, before),
            _due_places(inputs, images, checks, before, settings),
            _due_scenes(inputs, checks, before),
        ]
    )
    rows = due.join(refused_before(inputs, NAME), on="id", how="left")
    return rows.with_columns(pl.col("refused").fill_null(False)).sort("id")


def _images(inputs: Inputs, settings: CollectSettings) -> pl.DataFrame:
    """Street-view pictures of the providers in use that live, or were ended here."""
    rows = inputs.lake.scan("images", inputs.versions["images"]).filter(
        pl.col("stage") == street_view.STAGE.name,
        pl.col("source").is_in(settings.providers),
        pl.col("tombstone").is_null() | (pl.col("tombstone") == DELETED),
    )
    source = ("source", "source_id", "etag", "source_sha256")
    names = ("kind", "place_id", *source, "sha256", "extension", "fetched_at", "written_at", "tombstone")
    wanted = rows.select(pl.col("image_id").alias("id"), *names)
    images = newest_versions(inputs.lake.collect("images", wanted), ["id"])
    return images.with_columns(is_lost(images, inputs.lake.images) & images["tombstone"].is_null())


def _due_images(images: pl.DataFrame, checks: pl.DataFrame, before: datetime) -> pl.DataFrame:
    rows = images.join(checks, on="id", how="left")
    # A redone place fetches a picture after it was checked; then the picture's own marks are the newer ones.
    checked_last = (pl.col("checked_at") > pl.col("fetched_at")).fill_null(False)
    rows = rows.with_columns(
        etag=pl.when(checked_last & pl.col("check_etag").is_not_null()).then("check_etag").otherwise("etag"),
        source_sha256=pl.when(checked_last & pl.col("check_sha256").is_not_null())
        .then("check_sha256")
        .otherwise("source_sha256"),
    )
    seen_at = pl.max_horizontal("fetched_at", "checked_at")
    due = pl.col("tombstone").is_null() & (seen_at <= before)
    # Once told, its place is redone until it has the picture, or another: then the row is a newer one, or ended.
    told_lost = ((pl.col("status") == "lost") & (pl.col("checked_at") > pl.col("written_at"))).fill_null(False)
    lost = pl.col("lost") & ~told_lost
    # The same picture serves several places, and one of them has been told that it is gone.
    ended_at = pl.col("written_at").filter(pl.col("tombstone").is_not_null()).max().over("source", "source_id")
    ended_elsewhere = pl.col("tombstone").is_null() & (ended_at > seen_at).fill_null(False)
    # Killed between the end of a picture and the note of it: its place would never learn.
    untold = pl.col("tombstone").is_not_null() & (pl.col("status").fill_null("") != "deleted")
    return _as_items(rows.filter(due | lost | ended_elsewhere | untold), "image")


def _due_places(
    inputs: Inputs, images: pl.DataFrame, checks: pl.DataFrame, before: datetime, settings: CollectSettings
) -> pl.DataFrame:
    """Places without pictures, or with fewer than were wanted: something may have been taken there since."""
    kind, lives = pl.col("kind"), pl.col("tombstone").is_null()
    had = (
        # A picture that was ended counts as a look: its place is redone for that, also if a kill came in between.
        images.group_by(id="place_id")
        .agg(
            panoramas=(lives & (kind == "panorama")).sum(),
            photos=(lives & (kind == "photo")).sum(),
            looked_at=pl.col("written_at").max(),
        )
        .filter((pl.col("panoramas") < settings.panoramas) | (pl.col("photos") < settings.photos))
    )
    refused = inputs.frame("rejects").filter(pl.col("stage") == street_view.STAGE.name)
    short = pl.concat([had.select("id", "looked_at"), refused.select(id="item_id", looked_at="written_at")])
    rows = (
        short.group_by("id")
        .agg(pl.col("looked_at").max())
        .join(inputs.frame("places").select(id="place_id"), on="id", how="semi")
    )
    return _due_again(rows, checks, before, "place")


def _due_scenes(inputs: Inputs, checks: pl.DataFrame, before: datetime) -> pl.DataFrame:
    """Satellite pictures that were rejected: another scene may be there by now."""
    rejected = inputs.frame("rejects").filter(pl.col("stage") == satellite.STAGE.name)
    return _due_again(rejected.select(id="item_id", looked_at="written_at"), checks, before, "scene")


def _due_again(looked_at: pl.DataFrame, checks: pl.DataFrame, before: datetime, subject: str) -> pl.DataFrame:
    none = pl.lit(None, pl.String)
    rows = (
        looked_at.join(checks, on="id", how="left")
        .filter(pl.max_horizontal("looked_at", "checked_at") <= before)
        .with_columns(place_id="id", source=none, source_id=none, etag=none, source_sha256=none, lost=pl.lit(False))
    )
    return _as_items(rows, subject)


def _as_items(rows: pl.DataFrame, subject: str) -> pl.DataFrame:
    return rows.select(
        "id",
        "place_id",
        "source",
        "source_id",
        "etag",
        "source_sha256",
        "lost",
        subject=pl.lit(subject),
        news=pl.col("news").fill_null(0),
        nth=pl.col("nth").fill_null(0) + 1,
    )


def open_context(settings: CollectSettings, setup: WorkerSetup) -> WorkerContext:
    providers = {provider.name: provider for provider in open_providers(setup.connections, settings)}
    known = {name: Batches(provider.addresses, provider.limits.ids) for name, provider in providers.items()}
    return WorkerContext(providers, known, settings, StageResponses.of(setup, street_view.NAME))


async def work(item: dict[str, Any], context: WorkerContext) -> Outcome:
    """What is to be written about a picture or a place; each is kept, also when there is nothing new."""
    if item["subject"] != "image":
        return Kept({"checks": [_row(item, "look_again")]})
    url = await context.known[item["source"]].get(item["source_id"])
    if url is None:
        url = await _alone(context.providers[item["source"]], item["source_id"])
    if url is None:
        return _deleted(item)
    if item["lost"]:
        return Kept({"checks": [_row(item, "lost")]})  # its place fetches it
    if context.settings.refresh.bytes == "never":
        return Kept({"checks": [_row(item, "same")]})
    row = await _compared(item, url, context)
    return _deleted(item) if row["status"] == "deleted" else Kept({"checks": [row]})


def _deleted(item: dict[str, Any]) -> Kept:
    return Kept({"checks": [_row(item, "deleted")]}, gone={"images": {item["id"]: DELETED}})


async def _alone(provider: StreetViewProvider, source_id: str) -> str | None:
    """A picture that a list lacked, requested by itself: an answer that is merely incomplete must end nothing."""
    try:
        return await provider.address(source_id)
    except ServiceError as error:
        if error.kind == "not_found":
            return None
        raise


async def _compared(item: dict[str, Any], url: str, context: WorkerContext) -> dict[str, Any]:
    known = Known(item["source_id"], item["etag"], item["source_sha256"])
    try:
        kept, downloads = context.responses, context.settings.downloads
        comparison = await compared(known, url, context.providers[item["source"]], kept, context.hosts, downloads)
    except Refused as refused:
        # The first refusal is treated as transient, and so is one of a host that gives no picture at all.
        if not item["refused"] or not refused.is_its_own(context.hosts):
            raise
        return _row(item, "unavailable")
    image = comparison.image
    if image is None:
        return _row(item, comparison.status)
    return _row({**item, "etag": image.etag, "source_sha256": image.sha256}, comparison.status, image.at)


def _row(item: dict[str, Any], status: str, at: datetime | None = None) -> dict[str, Any]:
    return {
        "subject_id": item["id"],
        "subject": item["subject"],
        "place_id": item["place_id"],
        "status": status,
        "news": item["news"] + (status in _NEWS),
        "nth": item["nth"],
        "etag": item["etag"],
        "source_sha256": item["source_sha256"],
        "checked_at": at or datetime.now(UTC),
    }


STAGE = Stage(
    name=NAME,
    reads=("images", "places", "rejects", "checks", "failures"),
    writes=("images", "checks"),  # of `images` it only ends rows
    items=items,
    work=work,
    open=open_context,
    # Short answers, and the more wait together, the fewer requests: whole batches at a time.
    resources=Resources(cpus=1, concurrency=4 * AT_ONCE, chunk=AT_ONCE),
    services=lambda settings: settings.providers,
    keeps_history=True,  # what was written of a picture stands until something else is
    identity=lambda settings: {},  # what is due says all
    unhashed=("refused", "source"),
)
