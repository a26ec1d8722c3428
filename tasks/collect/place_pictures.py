"""A place's pictures: what it has stays, what it lacks is fetched and stored, what its source deleted is not taken."""

from datetime import datetime
from typing import Any

from tasks.collect.candidates import Candidate
from tasks.collect.download import Unusable
from tasks.collect.hosts import Refused
from tasks.collect.previous import facts_before, facts_had, seen_changed
from tasks.collect.worker import WorkerContext
from tasks.services import ServiceError


class PlacePictures:
    """The facts of one place's pictures."""

    def __init__(self, item: dict[str, Any], context: WorkerContext) -> None:
        self._item, self._context = item, context
        # A place with news is redone because something changed: what was said before the check that found it is old.
        news_at = item.get("news_at") if item.get("news") else None
        self.since_s = news_at.timestamp() if news_at else 0.0
        self._refused: list[Refused] = []
        self._unusable: list[tuple[str, Unusable]] = []  # by provider, those that may be the trouble of their host

    async def take(self, candidate: Candidate) -> dict[str, Any]:
        """The picture's facts, its bytes stored; `Unusable` when another is to be taken."""
        if candidate.key in self._context.ended:
            await self._is_back(candidate)
        facts = facts_had(self._item, candidate, self._context.lake)
        if facts is not None:
            return facts
        try:
            return await self._fetch(candidate)
        except Unusable:
            # What came instead is of no use, and the picture was not deleted: the stored bytes are still valid.
            facts = facts_before(self._item, candidate, self._context.prepared, self._context.lake)
            if facts is None:
                raise
            return facts

    def settle(self) -> None:
        """Raise the trouble of a host, to be tried again later: it refused a picture or gave junk, and no good one."""
        hosts = self._context.downloads.hosts
        for refused in self._refused:
            if not refused.is_its_own(hosts):
                raise refused
        for provider, why in self._unusable:
            if why.url is not None and not hosts.has_answered(why.url):
                detail = f"no picture has come from this host so far; the last: {why.kind}, {why.detail}"
                raise ServiceError(provider, "outage", detail, retryable=True)

    async def _fetch(self, candidate: Candidate) -> dict[str, Any]:
        try:
            seen = seen_changed(self._item, candidate)
            return await fetch_and_store(candidate, self._context, self.since_s, seen)
        except Unusable as why:
            self._unusable.append((candidate.source, why))
            raise
        except Refused as refused:
            # The first refusal is treated as transient: the choice must not depend on it.
            if not self._item.get("refused"):
                raise
            self._refused.append(refused)
            raise Unusable("forbidden", refused.message) from refused

    async def _is_back(self, candidate: Candidate) -> None:
        """`Unusable` if a deleted picture is still gone: searches show one for some time, and its host may have it."""
        try:
            await self._context.provider(candidate.source).address(candidate.source_id)
        except ServiceError as error:
            if error.kind == "not_found":
                detail = "the service says that it does not exist, though its search shows it"
                raise Unusable("deleted", detail) from error
            raise


async def fetch_and_store(
    candidate: Candidate, context: WorkerContext, since_s: float = 0.0, seen_sha256: str | None = None
) -> dict[str, Any]:
    """The picture's bytes, stored; what there is to say about them. `Unusable` when they are no picture.

    Whatever had come before, no earlier than `since_s` or as a check has seen it, does not come again.
    """
    key = candidate.key, str(candidate.kind), context.prepared
    async with context.fetching(candidate.key):
        # Another place may have fetched the same picture, here, in another process or before a kill.
        facts = _kept_facts(key, context, since_s, seen_sha256)
        return facts or await _fetch_now(candidate, key, context, since_s, seen_sha256)


async def _fetch_now(
    candidate: Candidate, key: tuple[str, str, str], context: WorkerContext, since_s: float, seen_sha256: str | None
) -> dict[str, Any]:
    try:
        image = context.responses.find_image(candidate.key, since_s, seen_sha256)
        picture = await context.downloads.get(candidate, image)
    except Unusable as why:
        if why.url is None or context.downloads.hosts.has_answered(why.url):
            await context.responses.keep({"kind": why.kind, "detail": why.detail}, "unusable", *key)
        context.responses.forget_image(candidate.key)
        raise
    image = picture.image
    facts: dict[str, Any] = {
        "fetched_at": image.at,
        "request_url": image.request_url,
        "http_status": 200,  # anything else is no picture
        "sha256": picture.sha256,
        "extension": picture.extension,
        "bytes": picture.size,
        "width": picture.width,
        "height": picture.height,
        "etag": image.etag,
        "source_sha256": image.sha256,
        "source_bytes": len(image.data),
        "prepared": context.prepared,
    }
    await context.responses.keep(facts | {"fetched_at": image.at.isoformat()}, "stored", *key)
    context.responses.forget_image(candidate.key)
    return facts


def _kept_facts(
    key: tuple[str, ...], context: WorkerContext, since_s: float, seen_sha256: str | None
) -> dict[str, Any] | None:
    """The facts of a picture that was stored and may not be committed yet; `Unusable` if it was found to be that."""
    why = context.responses.find("unusable", *key, since_s=since_s)
    if why is not None:
        raise Unusable(why["kind"], why["detail"])
    facts = context.responses.find("stored", *key)
    if facts is None or not context.lake.images.exists(facts["sha256"], facts["extension"]):
        return None
    is_current = context.responses.find("stored", *key, since_s=since_s) is not None
    if not is_current and facts["source_sha256"] != seen_sha256:
        return None
    fetched_at = datetime.fromisoformat(facts["fetched_at"])
    return dict(facts, fetched_at=fetched_at)
