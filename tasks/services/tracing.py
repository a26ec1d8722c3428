"""Traces of a picture's way by OpenTelemetry: where OTEL_EXPORTER_OTLP_ENDPOINT names a collector; else no cost.

A trace belongs to an item and not to a run: its id follows from the item's id, so that the spans of all stages and runs
lie in one trace. Spans carry names of stages and services, ids, counts and reasons; no text, address, position or key.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
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
    provider = _provider()
    if provider is None:
        yield {}
        return
    from opentelemetry import trace

    digest = hashlib.sha256(item_id.encode()).digest()
    root = trace.SpanContext(
        int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big"), True, trace.TraceFlags(1)
    )
    parent = trace.set_span_in_context(trace.NonRecordingSpan(root))
    about: dict[str, Any] = {"geofix.stage": stage, "geofix.run_id": run_id, "geofix.item_id": item_id}
    told: dict[str, Any] = {}
    with provider.get_tracer(SERVICE).start_as_current_span(
        stage, context=parent, attributes=about, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield told
        finally:
            span.set_attributes({f"geofix.{name}": value for name, value in told.items()})
            if told.get("outcome") == "failed":
                span.set_status(trace.StatusCode.ERROR)


@contextlib.contextmanager
def request_span(service: str, kind: str) -> Iterator[dict[str, Any]]:
    """The span of one attempt to ask a service, inside that of the item it is for."""
    provider = _provider()
    if provider is None:
        yield {}
        return
    told: dict[str, Any] = {}
    name = f"{service} {kind}".strip()
    with provider.get_tracer(SERVICE).start_as_current_span(
        name, attributes={"geofix.service": service}, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield told
        finally:
            span.set_attributes({f"geofix.{name}": value for name, value in told.items()})


def flush_spans() -> None:
    """Send what is waiting: a worker may be ended at any moment after its chunk."""
    provider = _provider()
    if provider is not None:
        provider.force_flush(FLUSH_MS)
