"""What a run shows to Prometheus while it lasts, at one address for the command and all its workers.

Workers send what they counted with their results, so that nothing but this process listens, on any cluster. Labels are
names of stages, services, pools and phases: no id of a picture, no place, no key.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.config import Config
from tasks.lake import Lake
from tasks.runtime.calls import spent_usd
from tasks.runtime.items.identity import code_version
from tasks.runtime.items.outcome import Tick
from tasks.runtime.steps import StepFile
from tasks.services.rate_budget import BudgetFile

FRESH_S = 5.0  # for so long what was read from files is shown again
KINDS = ("", "search", "tiles")  # of requests that have budgets of a day
PHASES = ("sft", "cold_start", "grpo")
# Of a training step, where its loop reports them.
FIGURES = {
    "loss": "Loss of the last step.",
    "reward": "Mean reward of the last step.",
    "tokens_per_s": "Tokens trained on in a second.",
    "mfu": "Model FLOPs utilization.",
}

logger = logging.getLogger("geofix.flows")


class RunMetrics:
    """The metrics of one run."""

    def __init__(self, config: Config, lake: Lake, flow: str = "", flow_run_id: str = "") -> None:
        self.registry = CollectorRegistry()
        self._last: dict[str, Tick] = {}
        self._lock = threading.Lock()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"geofix_{name}", about, labels, registry=self.registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"geofix_{name}", about, labels, registry=self.registry)

        info = gauge(
            "run_info", "The run that is shown; always 1.", "flow", "flow_run_id", "recipe", "profile", "version"
        )
        info.labels(flow, flow_run_id, config.recipe, config.profile, code_version()).set(1)
        self._in = gauge("stage_items_in", "Items that a step has to do in this run.", "stage")
        self._skipped = gauge("stage_items_skipped", "Items that earlier runs have finished.", "stage")
        self._running = gauge("stage_running", "1 while a step is at work.", "stage")
        self._items = counter(
            "stage_items", "Items done, by outcome; in = kept + rejected + failed.", "stage", "outcome"
        )
        self._requests = counter("service_requests", "Requests sent, each attempt.", "service", "kind")
        self._bytes = counter("service_received_bytes", "Bytes received.", "service", "kind")
        self._waits = counter(
            "service_wait_seconds", "Seconds in which a service's limit let no request pass.", "service"
        )
        self._tokens = counter("model_tokens", "Tokens of models, replayed ones not counted.", "stage", "kind")
        self._cost = counter("model_cost_usd", "Money for calls to models, as far as prices are known.", "stage")
        self.registry.register(_Files(config, lake))

    def tick(self, tick: Tick) -> None:
        """Take in how far a step is."""
        with self._lock:
            before = self._last.get(tick.stage)
            if before is None or before.finished or tick.done < before.done:
                before = Tick(tick.stage, tick.total, tick.skipped)  # another run of the step
            self._last[tick.stage] = tick
        stage = tick.stage
        self._in.labels(stage).set(tick.todo)
        self._skipped.labels(stage).set(tick.skipped)
        self._running.labels(stage).set(0 if tick.finished else 1)
        for outcome in ("kept", "rejected", "failed"):
            self._items.labels(stage, outcome).inc(getattr(tick, outcome) - getattr(before, outcome))
        for name, count in tick.sent.requests.items():
            service, _, kind = name.partition(" ")
            self._requests.labels(service, kind).inc(count - before.sent.requests[name])
            self._bytes.labels(service, kind).inc(tick.sent.bytes[name] - before.sent.bytes[name])
        for service, seconds in tick.waited_s.items():
            self._waits.labels(service).inc(max(0.0, seconds - before.waited_s.get(service, 0.0)))
        if tick.usage.requests:
            used = tick.usage - before.usage
            self._tokens.labels(stage, "prompt").inc(used.prompt_tokens)
            self._tokens.labels(stage, "completion").inc(used.completion_tokens)
            self._cost.labels(stage).inc(used.cost_usd or 0.0)

    def watch_pools(self, pools: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Show the pools that are up: (name, model, GPU seconds so far)."""
        self.registry.register(_Pools(pools))


class _Files(Collector):
    """What is read when it is requested: budgets from the lake's local state, training from the files of its steps."""

    def __init__(self, config: Config, lake: Lake) -> None:
        self._config, self._lake, self._since = config, lake, time.time()
        self._budgets = BudgetFile(lake.state / "budgets.sqlite")
        self._read_s, self._known = float("-inf"), list[Metric]()
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() - self._read_s > FRESH_S:
                self._known, self._read_s = [*self._money(), *self._days(), *self._training()], time.monotonic()
            return self._known

    def _money(self) -> Iterator[Metric]:
        spent = spent_usd(self._lake)
        yield _gauge("lake_spent_usd", "Money that calls and pools have cost on this lake.", [], [((), spent)])
        if (budget := self._config.models.budget_usd) is not None:
            yield _gauge("budget_left_usd", "What is left of models.budget_usd.", [], [((), budget - spent)])

    def _days(self) -> Iterator[Metric]:
        today, rows = int(time.time() // 86_400), []
        for name, endpoint in self._config.services.endpoints().items():
            allowances = {
                allowance.name: allowance
                for kind in KINDS
                for allowance in endpoint.allowances(kind)
                if allowance.per_day
            }
            for allowance in allowances.values():
                state = self._budgets.state(f"{endpoint.base_url} {allowance.name}")
                used = state.used if state.day == today else 0
                rows.append(((name, allowance.day_setting), float((allowance.per_day or 0) - used)))
        about = "What is left of a service's budget of this day (UTC)."
        yield _gauge("service_requests_left", about, ["service", "limit"], rows)

    def _training(self) -> Iterator[Metric]:
        read = {phase: StepFile(self._lake.state, f"train.{phase}").read(self._since) for phase in PHASES}
        steps = {phase: step for phase, step in read.items() if step is not None}
        if not steps:
            return
        done = [((phase,), float(step.done)) for phase, step in steps.items()]
        planned = [((phase,), float(step.total)) for phase, step in steps.items()]
        yield _gauge("training_steps_done", "Optimizer steps done.", ["phase"], done)
        yield _gauge("training_steps_planned", "Optimizer steps planned.", ["phase"], planned)
        for name, about in FIGURES.items():
            rows = [((phase,), step.figures[name]) for phase, step in steps.items() if name in step.figures]
            if rows:
                yield _gauge(f"training_{name}", about, ["phase"], rows)


class _Pools(Collector):
    def __init__(self, pools: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        up = list(self._pools())
        yield _gauge(
            "pool_up", "1 while a pool is up or coming up.", ["pool", "model"], [(pool[:2], 1.0) for pool in up]
        )
        about = "GPU seconds of a pool, booked so far."
        yield _gauge("pool_gpu_seconds", about, ["pool", "model"], [(pool[:2], pool[2]) for pool in up])


def _gauge(name: str, about: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    made = GaugeMetricFamily(f"geofix_{name}", about, labels=labels)
    for label_values, value in values:
        made.add_metric(label_values, value)
    return made


@contextlib.contextmanager
def run_metrics(config: Config, lake: Lake, **about: Any) -> Iterator[RunMetrics | None]:
    """The metrics of a run, shown while this lasts, if `observe.metrics_port` is set.

    A port that is taken, by another run on this machine, is a warning: the run does not depend on being watched.
    """
    port, host = config.observe.metrics_port, config.observe.metrics_host
    if port is None:
        yield None
        return
    metrics = RunMetrics(config, lake, **about)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        reason = error.strerror or error
        logger.warning("no metrics of this run: observe.metrics_port=%d on %s: %s", port, host, reason)
        yield metrics
        return
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
