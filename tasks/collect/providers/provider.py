"""What a street-view provider is, and the providers by name.

A provider is a folder with `PROVIDER`. It answers six questions: what covers a box (`in_box`, `tile`), what is known of
the pictures seen there (`by_id`), the bytes of one (`fetch`), whether it has changed or is gone (`fetch` with the
validator of last time, `addresses`, `address`), under which licence it is (`PictureRecord.licence`), and within which
limits all that it takes (`limits`; the pace is the endpoint's). How places are searched, which pictures are chosen,
checked again and accounted for is the same for all.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.providers import provider_packages
from schemas.settings.collect import CollectSettings
from tasks.collect.boxes import Box
from tasks.collect.candidates import PictureRecord
from tasks.collect.tiles import TileLayer, TileName
from tasks.services import Connection, Connections


@dataclass(frozen=True)
class Limits:
    """What a provider answers to one request, and how far an answer is to be believed."""

    ids: int = 50  # pictures of one request by id
    box_sq_deg: float = float("inf")  # the largest box, as an area
    layer: TileLayer | None = None  # which tiles show single pictures; None: it has no tiles, and boxes must do
    # A box may silently lack pictures: one that is answered with few is looked at once more.
    leaves_out: bool = False
    # The host of the bytes is the provider itself: what is not there (404) was deleted or hidden by its owner.
    missing_is_gone: bool = False


@dataclass(frozen=True)
class FetchedBytes:
    """A picture's bytes, and the validator to ask with next time; empty where the host gives none."""

    data: bytes
    etag: str


class StreetViewProvider(Protocol):
    """A provider as a worker asks it. Errors are ServiceError; `too_big` and `too_dense` of a box: split it."""

    @property
    def name(self) -> str:
        """As in `collect.providers` and in the column `source` of `images`."""

    @property
    def server(self) -> str:
        """Whose answers these are: those of another server are not taken for them."""

    @property
    def limits(self) -> Limits: ...

    async def in_box(self, box: Box) -> list[PictureRecord]:
        """The pictures in a box. `collect.crowded_rows` of them or more: there may be others."""

    async def tile(self, name: TileName) -> bytes:
        """The vector tile that shows where pictures are; empty where there is none."""

    async def by_id(self, ids: Sequence[str]) -> Mapping[str, PictureRecord]:
        """Those of these pictures that exist; at most `limits.ids` are requested."""

    async def addresses(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Those of these pictures that exist, each with the address of its bytes; empty where it has none now."""

    async def address(self, source_id: str) -> str:
        """The same of one picture; `not_found` where it is gone."""

    async def fetch(self, url: str, etag: str | None = None) -> FetchedBytes | None:
        """The bytes at an address; None if they still are those `etag` was given for. `expired`: ask for another."""


@dataclass(frozen=True)
class Provider:
    """What a provider's folder declares as `PROVIDER`."""

    open: Callable[[Connection, CollectSettings], StreetViewProvider]


def open_providers(connections: Connections, settings: CollectSettings) -> tuple[StreetViewProvider, ...]:
    """The providers of the settings, in their order."""
    packages, opened = provider_packages(), []
    for name in settings.providers:
        declared: Provider = importlib.import_module(packages[name]).PROVIDER
        connection = connections.named(name)
        assert connection is not None, "a provider's connection is there, or InputError says what to set"
        opened.append(declared.open(connection, settings))
    return tuple(opened)
