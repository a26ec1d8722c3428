"""Answers that a stage of collect was given and has not committed, so that a run after a kill does not ask again.

A run that ends well has committed all it did, so the next one uses only answers younger than the newest such run, and
none older than half an hour: what a service said then may have changed. Where a check has found that it did, only what
was said after it counts. Nothing here is needed: a full disk costs a request, never a place.
"""

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import polars as pl
from pydantic import TypeAdapter

from schemas.errors import StageRefused
from tasks.collect import boxes
from tasks.collect.candidates import PictureRecord
from tasks.collect.providers.provider import StreetViewProvider
from tasks.lake import Lake
from tasks.runtime.runner import WorkerSetup
from tasks.services import Connection
from tasks.services.calls import server_of
from tasks.services.response_store import Forget, Keep, Response, ResponseStore, digest_key, pack, unpack, writer_of
from tasks.services.stac import Box, Stac

VALID_S = 1800.0
MOST_ROWS = 300  # a longer answer is requested again rather than kept
_IMAGE = "picture"
_RECORDS = TypeAdapter(list[PictureRecord])


@dataclass(frozen=True)
class FetchedImage:
    """A picture as it came: its bytes, and what there is to say of the fetching."""

    data: bytes
    sha256: str
    etag: str | None  # the host's mark of these bytes
    request_url: str  # without its signature
    at: datetime

    @classmethod
    def now(cls, data: bytes, etag: str | None, request_url: str) -> Self:
        return cls(data, hashlib.sha256(data).hexdigest(), etag, request_url, datetime.now(UTC))


class StageResponses:
    """The answers of one stage. Without a store nothing is kept, and nothing found."""

    def __init__(self, store: ResponseStore | None = None, stage: str = "", since_s: float = 0.0) -> None:
        self._store, self._stage, self._since_s = store, stage, since_s

    @classmethod
    def of(cls, setup: WorkerSetup, stage: str) -> Self:
        """The answers of a stage on a lake, kept on the worker's node."""
        return cls(setup.node_responses(), stage, ended_s(setup.lake, stage))

    def find(self, kind: str, *request: Any, since_s: float = 0.0) -> Any | None:
        """The JSON value that was answered, at that moment or later, or None."""
        value = self.find_bytes(kind, *request, since_s=since_s)
        return None if value is None else json.loads(value)

    def find_bytes(self, kind: str, *request: Any, since_s: float = 0.0) -> bytes | None:
        """The bytes that were answered, at that moment or later, or None."""
        response = self._find(kind, *request)
        return response.value if response is not None and response.asked_at >= max(self._since_s, since_s) else None

    async def keep(self, value: Any, kind: str, *request: Any) -> None:
        """Keep a JSON value."""
        await self.keep_bytes(json.dumps(value).encode(), kind, *request)

    async def keep_bytes(self, value: bytes, kind: str, *request: Any) -> None:
        """Keep bytes."""
        await self._keep(value, time.time(), VALID_S, kind, *request)

    def find_image(self, key: str, since_s: float = 0.0, sha256: str | None = None) -> FetchedImage | None:
        """A picture that is not stored yet, if it came at that moment or later, or has this sha256."""
        response = self._find(_IMAGE, key)
        if response is None:
            return None
        head, data = unpack(response.value)
        at = datetime.fromisoformat(head["at"])
        image = FetchedImage(data, hashlib.sha256(data).hexdigest(), head["etag"], head["request_url"], at)
        is_current = response.asked_at >= max(self._since_s, since_s)
        return image if is_current or image.sha256 == sha256 else None

    async def keep_image(self, key: str, image: FetchedImage, valid_s: float = VALID_S) -> None:
        """Keep a picture's bytes until they are stored, or for `valid_s`."""
        head = {"etag": image.etag, "request_url": image.request_url, "at": image.at.isoformat()}
        await self._keep(pack(head, image.data), image.at.timestamp(), valid_s, _IMAGE, key)

    def forget_image(self, key: str) -> None:
        """A picture is stored, or of no use."""
        if self._store is not None:
            writer_of(self._store).write_later(Forget(*self._name(_IMAGE, key)))

    def _find(self, kind: str, *request: Any) -> Response | None:
        if self._store is None:
            return None
        with contextlib.suppress(StageRefused):  # a file that cannot be read: it is queried again
            return self._store.find(*self._name(kind, *request))
        return None

    async def _keep(self, value: bytes, asked_at: float, valid_s: float, kind: str, *request: Any) -> None:
        if self._store is not None:
            step = Keep(*self._name(kind, *request), value, asked_at, asked_at + valid_s)
            with contextlib.suppress(StageRefused):  # a full disk: what is not kept is queried again
                await writer_of(self._store).write(step)

    def _name(self, kind: str, *request: Any) -> tuple[str, str]:
        return f"{self._stage}.{kind}", digest_key(*request)


def ended_s(lake: Lake, stage: str) -> float:
    """When the newest run of a stage ended that has committed all it did."""
    runs = lake.read("runs", columns=["stage", "status", "finished_at"])
    ended = runs.filter((pl.col("stage") == stage) & pl.col("status").str.starts_with("done"))["finished_at"].max()
    return ended.timestamp() if isinstance(ended, datetime) else 0.0


class RecalledBoxes:
    """A provider's answers to searches by box, kept ones first: said at a moment or later."""

    def __init__(self, provider: StreetViewProvider, responses: StageResponses, since_s: float = 0.0) -> None:
        self._provider, self._responses, self._since_s = provider, responses, since_s

    async def in_box(self, box: boxes.Box) -> list[PictureRecord]:
        """The pictures in a box."""
        request = ("box", self._provider.name, self._provider.server, box.west, box.south, box.east, box.north)
        kept = self._responses.find_bytes(*request, since_s=self._since_s)
        if kept is not None:
            return _RECORDS.validate_json(kept)
        records = await self._provider.in_box(box)
        if len(records) <= MOST_ROWS:
            # An address may be signed: it stays out of every file, and a new one is requested.
            bare = [replace(record, url=None) for record in records]
            await self._responses.keep_bytes(_RECORDS.dump_json(bare), *request)
        return records


class RecallingStac(Stac):
    """The archive of scenes, but for searches and parts of files whose answer was kept."""

    def __init__(self, connection: Connection, responses: StageResponses) -> None:
        super().__init__(connection)
        self._responses, self._server = responses, server_of(connection.endpoint.base_url)

    async def search(
        self, collection: str, box: Box, start: datetime, end: datetime, max_cloud_percent: float = 100.0
    ) -> list[dict[str, Any]]:
        between = start.isoformat(), end.isoformat()
        request = ("search", self._server, collection, box, *between, max_cloud_percent)
        kept: list[dict[str, Any]] | None = self._responses.find(*request)
        if kept is not None:
            return kept
        rows = await super().search(collection, box, start, end, max_cloud_percent)
        await self._responses.keep(rows, *request)
        return rows

    async def read(self, href: str, start: int, end: int) -> bytes:
        kept = self._responses.find_bytes("read", href, start, end)
        if kept is not None:
            return kept
        data = await super().read(href, start, end)
        await self._responses.keep_bytes(data, "read", href, start, end)
        return data
