"""What a piece of work asks of services: requests and received bytes as counts, and traces by OpenTelemetry.

There are traces where OTEL_EXPORTER_OTLP_ENDPOINT names a collector; else they cost nothing. A trace belongs to an item
and not to a run: its id follows from the item's id, so that the spans of all stages and runs lie in one trace. Spans
carry names of stages and services, ids, counts and reasons; no text, address, position or key.
"""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE = "geofix"
FLUSH_MS = 5_000


def is_tracing() -> bool:
    """Whether the environment names a collector."""
    return any(os.environ.get(name) for name in ENDPOINTS)


@cache
def _provider() -> "TracerProvider | None":
    if not is_tracing():
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


@contextlib.contextmanager
def item_span(stage: str, run_id: str, item_id: str) -> Iterator[dict[str, Any]]:
    """The span of an item's work in a stage; what the caller puts into the dictionary becomes its attributes."""
    if _provider() is None:
        yield {}
        return
    from opentelemetry import trace

    digest = hashlib.sha256(item_id.encode()).digest()
    root = trace.SpanContext(
        int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big"), True, trace.TraceFlags(1)
    )
    parent = trace.set_span_in_context(trace.NonRecordingSpan(root))
    with _span(stage, {"stage": stage, "run_id": run_id, "item_id": item_id}, parent) as told:
        yield told


def request_span(service: str, kind: str) -> contextlib.AbstractContextManager[dict[str, Any]]:
    """The span of one attempt to ask a service, inside that of the item it is for."""
    return _span(f"{service} {kind}".strip(), {"service": service})


@contextlib.contextmanager
def _span(name: str, about: dict[str, Any], parent: Any = None) -> Iterator[dict[str, Any]]:
    provider = _provider()
    if provider is None:
        yield {}
        return
    from opentelemetry.trace import StatusCode

    told: dict[str, Any] = {}
    with provider.get_tracer(SERVICE).start_as_current_span(
        name, parent, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield told
        finally:
            span.set_attributes({f"geofix.{name}": value for name, value in (about | told).items()})
            if told.get("outcome") == "failed":
                span.set_status(StatusCode.ERROR)


def flush_spans() -> None:
    """Send what is waiting: a worker may be ended at any moment after its chunk."""
    provider = _provider()
    if provider is not None:
        provider.force_flush(FLUSH_MS)


@dataclass
class Tally:
    """Requests and received bytes, by "service kind"; add two to get their sum."""

    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.requests + other.requests, self.bytes + other.bytes)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """(requests, bytes) of each kind."""
        return {kind: (number, self.bytes[kind]) for kind, number in sorted(self.requests.items())}


# Of the running asyncio task and of those it starts; None: nothing is counted.
tally: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextlib.contextmanager
def counted_in(counter: Tally) -> Iterator[Tally]:
    """Count the requests of a block."""
    token = tally.set(counter)
    try:
        yield counter
    finally:
        tally.reset(token)


def count(service: str, kind: str, requests: int, size: int) -> None:
    """Called by the HTTP client for every attempt."""
    counter = tally.get()
    if counter is not None:
        name = f"{service} {kind}".strip()
        counter.requests[name] += requests
        counter.bytes[name] += size
