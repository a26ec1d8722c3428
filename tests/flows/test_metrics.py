"""What a run shows to those who watch it: /metrics, traces, log lines as JSON, and the dashboard over them."""

import io
import json
import logging
import re
import socket
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import promql_parser
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flows.display import Logged
from flows.metrics import RunMetrics, run_metrics
from flows.run_log import RunLog, run_log
from schemas.config import Config
from schemas.messages import Usage
from tasks.lake import Lake
from tasks.runtime.items.chunk import ChunkJob
from tasks.runtime.items.outcome import Rejected, Tick
from tasks.runtime.steps import StepFile, Steps
from tasks.services import meter
from tasks.services.errors import ServiceError
from tasks.services.meter import Tally

DASHBOARD = Path(__file__).resolve().parents[2] / "infra/grafana/geofix.json"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def settings(port: int | None = None) -> Config:
    services = {"mapillary": {"tiles_per_day": 1000}}
    return Config.model_validate(
        {"observe": {"metrics_port": port}, "models": {"budget_usd": 4.0}, "services": services}
    )


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def full_run(metrics: RunMetrics, lake: Lake) -> None:
    """What a run tells, all of it."""
    sent = Tally(Counter({"mapillary search": 7, "chat": 2}), Counter({"mapillary search": 900}))
    for kept in (1, 3):
        metrics.tick(Tick("collect", 10, 2, kept, 1, 1, sent=sent, waited_s={"mapillary": 2.5}))
    metrics.tick(Tick("curate.judge", 5, 0, 4, usage=Usage(100, 20, 0.5, 4), finished=True))
    metrics.watch_pools(lambda: [("eyes", "qwen", 12.0)])
    figures = {"loss": 1.25, "reward": 0.5, "tokens_per_s": 900.0, "mfu": 0.5}
    StepFile(lake.state, "train.grpo").write(Steps(3, 20, "loss 1.25", figures))


def test_the_running_command_shows_stages_services_budgets_pools_and_training(tmp_path: Path) -> None:
    port, lake = free_port(), Lake(tmp_path / "lake")
    with run_metrics(settings(port), lake, flow="refresh", flow_run_id="f1") as metrics:
        assert metrics is not None
        full_run(metrics, lake)
        shown = scrape(port)
        # The same step again, in the same process: counters go on.
        metrics.tick(Tick("curate.judge", 5, 4, 1))
        again = scrape(port)
    with pytest.raises(OSError):
        scrape(port)
    assert shown['geofix_stage_items_total{outcome="kept",stage="collect"}'] == 3
    assert shown['geofix_stage_items_total{outcome="failed",stage="collect"}'] == 1
    assert (shown['geofix_stage_items_in{stage="collect"}'], shown['geofix_stage_running{stage="collect"}']) == (8, 1)
    assert shown['geofix_service_requests_total{kind="search",service="mapillary"}'] == 7
    assert shown['geofix_service_wait_seconds_total{service="mapillary"}'] == 2.5
    assert shown['geofix_service_requests_left{limit="tiles_per_day",service="mapillary"}'] == 1000
    assert shown["geofix_budget_left_usd"] == 4.0
    assert shown['geofix_model_cost_usd_total{stage="curate.judge"}'] == 0.5
    assert shown['geofix_pool_up{model="qwen",pool="eyes"}'] == 1
    assert shown['geofix_training_loss{phase="grpo"}'] == 1.25
    assert shown['geofix_training_mfu{phase="grpo"}'] == 0.5
    assert again['geofix_stage_items_total{outcome="kept",stage="curate.judge"}'] == 5


def test_metrics_are_off_by_default_on_loopback_and_never_stop_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Config().observe.metrics_port is None and Config().observe.metrics_host == "127.0.0.1"
    with run_metrics(Config(), Lake(tmp_path / "lake")) as metrics:
        assert metrics is None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with run_metrics(settings(taken.getsockname()[1]), Lake(tmp_path / "lake")) as metrics:
            assert metrics is not None  # the run goes on
    assert "no metrics of this run: observe.metrics_port=" in caplog.text


def test_every_query_of_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    metrics = RunMetrics(settings(), lake)
    full_run(metrics, lake)
    known: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert len(queries) >= 12
    used = set()
    for query in queries:
        if query.startswith("label_values("):
            query = query.removeprefix("label_values(").partition(",")[0]
        promql_parser.parse(query.replace("$__rate_interval", "5m"))
        names = re.findall(r"\bgeofix_\w+", query)
        assert names, query
        used |= set(names)
        for labels in re.findall(r"(?:by|without) ?\(([^)]*)\)", query):
            given = {one.strip() for one in labels.split(",")}
            assert given <= set().union(*(known.get(name, set()) for name in names)), query
    assert used <= known.keys(), used - known.keys()
    # And each thing that is worth watching is on it.
    assert {name for name in known if not name.endswith("_created")} <= used


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(meter, "_provider", lambda: provider)
    return exporter


def job(stage: str, work: Any) -> ChunkJob:
    return ChunkJob(stage, f"{stage}-run", "images", ("images",), work, lambda: None, 1)


async def test_the_spans_of_all_stages_of_a_picture_are_one_trace_without_truth_or_text(
    spans: InMemorySpanExporter,
) -> None:
    async def judge(row: Any, context: Any) -> Any:
        with meter.request_span("chat", ""):
            pass
        if row["id"] == "bad":
            raise ServiceError("chat", "outage", "Vienna 48.2082 is down")
        return Rejected("not_localizable", {"lat": 48.2082})

    def hash_picture(row: Any, context: Any) -> Any:
        return Rejected("too_small")

    chunk = pl.DataFrame({"id": ["a", "bad"], "made_from": ["x", "y"], "lat": [48.2082, 1.0]})
    await job("curate.judge", judge).make_async()(chunk)
    job("curate.quality", hash_picture).make_sync()(chunk)
    found = spans.get_finished_spans()
    of_a = [one for one in found if (one.attributes or {}).get("geofix.item_id") == "a"]
    assert [one.name for one in of_a] == ["curate.judge", "curate.quality"]
    assert len({one.context.trace_id for one in of_a}) == 1
    asked = [one for one in found if one.name == "chat"]
    assert {one.parent.span_id for one in asked if one.parent} <= {one.context.span_id for one in found}
    [failed] = [one for one in found if (one.attributes or {}).get("geofix.outcome") == "failed"]
    assert (failed.attributes or {})["geofix.kind"] == "outage"
    assert (of_a[0].attributes or {})["geofix.reason"] == "not_localizable"
    text = " ".join(one.to_json() for one in found)
    assert "48.2" not in text and "Vienna" not in text


def test_without_an_endpoint_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in meter.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    meter._provider.cache_clear()
    with meter.item_span("plan", "r", "a") as told:
        told["outcome"] = "kept"
    assert meter._provider() is None


def test_log_lines_as_json_carry_the_ids_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr("prefect.logging.handlers.APILogHandler.emit", lambda self, record: None)
    to_api = RunLog("flow-1")
    to_api.task_run_id = "task-1"
    ours = logging.getLogger("geofix")
    ours.addHandler(to_api)
    try:
        with run_log(Logged(), "json"):
            logging.getLogger("geofix.flows").info("plan: %d in", 5)
    finally:
        ours.removeHandler(to_api)
    [line] = [json.loads(one) for one in out.getvalue().splitlines()]
    assert (line["message"], line["level"], line["logger"]) == ("plan: 5 in", "INFO", "geofix.flows")
    assert (line["flow_run_id"], line["task_run_id"]) == ("flow-1", "task-1")
    assert abs(time.time() - time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S"))) < 100_000
