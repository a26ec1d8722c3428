"""Budgets of requests across the workers of a run and from run to run."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
import ray
from ray import cloudpickle

from flows.cli.closing import closing_words
from flows.cli.command import Call
from schemas.settings.base import Settings
from schemas.settings.endpoint import Allowance
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.lake import Lake
from tasks.runtime.on_ray.budget_actor import actor_rate_budget
from tasks.runtime.on_ray.start import start_ray, stop_ray
from tasks.runtime.runner import Context, Inputs, Kept, Resources, Row, Stage, WorkerSetup, run
from tasks.services import connect
from tasks.services.rate_budget import BudgetFile, RateLimiter, UsedUp

pytestmark = pytest.mark.whole

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DAY = Allowance("", None, 7)
REFUSAL = b'{"error": {"message": "Application request limit reached", "type": "MLYApiException", "code": 4}}'


class Nothing(Settings):
    count: int = 12


def items(inputs: Inputs, settings: Nothing) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"n{k:02d}" for k in range(settings.count)]})


def open_client(settings: Nothing, setup: WorkerSetup) -> Mapillary:
    return Mapillary(setup.connections.street_view["mapillary"])


async def look(item: Row, mapillary: Mapillary) -> Kept:
    await mapillary.image(item["id"][1:], ("id",))
    return Kept(
        {"places": [{"place_id": item["id"], "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}]},
    )


LOOK = Stage(
    "look",
    (),
    ("places",),
    items,
    look,
    open_client,
    resources=Resources(1, workers=2, chunk=2),
    services=("mapillary",),
)


@pytest.fixture(scope="module", autouse=True)
def end_ray() -> Iterator[None]:
    yield
    stop_ray()


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every image, but for those it refuses first, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            refused = len(asked) <= getattr(request, "param", 0)
            body = REFUSAL if refused else b'{"id": "1"}'
            self.send_response(403 if refused else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_workers_and_runs_share_the_days_budget(tmp_path: Path, service: tuple[str, list[str]]) -> None:
    url, asked = service
    settings = ServicesSettings.model_validate({"mapillary": {"base_url": url, "requests_per_day": 7}})
    context = Context(Lake(tmp_path), connect(settings, {}), SpreadSettings(workers=2))
    result = run(LOOK, Nothing(), context)
    assert (result.kept, result.failed, dict(result.failures)) == (7, 5, {"quota": 5})
    assert len(asked) == 7
    failures = context.lake.read("failures")
    assert all("services.mapillary.requests_per_day" in text for text in failures["message"])
    assert all("00:00 UTC" in text for text in failures["message"])
    again = run(LOOK, Nothing(), context)  # the same day: nothing is asked, what is done stands
    assert (again.kept, again.failed, again.skipped) == (0, 5, 7) and len(asked) == 7


@pytest.mark.parametrize("service", [7], indirect=True)
def test_a_limit_that_is_reached_is_waited_for_and_said(
    tmp_path: Path,
    service: tuple[str, list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, asked = service
    monkeypatch.setattr("tasks.services.limits.REPORT_EVERY_S", 0.0)
    patient = {"base_url": url, "max_attempts": 2, "limit_pause_s": 0.2, "backoff_s": 0.0}
    settings = ServicesSettings.model_validate({"mapillary": patient})
    context = Context(Lake(tmp_path), connect(settings, {}), SpreadSettings(workers=2))
    result = run(LOOK, Nothing(), context)
    assert (result.kept, result.failed, len(asked)) == (12, 0, 12 + 7)
    assert result.paused_s["mapillary"] > 0
    assert "mapillary says that its limit is reached" in caplog.text and "for 0 s" not in caplog.text
    assert "limit was reached" in closing_words([result], context.lake, Call())
    rate_budget = BudgetFile(tmp_path / ".state" / "budgets.sqlite")
    while rate_budget.paused_s(f"mapillary {url[7:]}") > 0.0:  # it ends by itself, if the word of a worker comes late
        time.sleep(0.05)
    assert not run(LOOK, Nothing(count=13), context).paused_s, "what was before this run is not this run's"


def test_a_cluster_asks_one_actor(tmp_path: Path) -> None:
    start_ray(SpreadSettings(workers=2))
    rate_budget = actor_rate_budget(str(tmp_path / "budgets.sqlite"))
    assert actor_rate_budget(str(tmp_path / "budgets.sqlite")) is rate_budget

    @ray.remote(num_cpus=0)
    def take(count: int) -> int:
        async def permits() -> int:
            mine, taken = RateLimiter(rate_budget, "x", DAY), 0
            for _ in range(count):
                try:
                    await mine.acquire()
                except UsedUp:
                    break
                taken += 1
            return taken

        return asyncio.run(permits())

    assert sum(ray.get([take.remote(5), take.remote(5)], timeout=600)) == 7
    state = rate_budget.state("x")
    assert state.used == 7 and BudgetFile(tmp_path / "budgets.sqlite").state("x") == state
    rate_budget.give_back("x", state.day, 2)
    assert rate_budget.lease("x", DAY, 5).count == 2
