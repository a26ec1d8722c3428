"""What a run would cost: the items that are pending, times what the last runs of the step took for one of them.

Time, requests and bytes come from the table `runs`; calls, tokens and money from `calls`, which also holds what a
killed run paid for. A step that was never run gets the defaults below, and says so. No service is asked and nothing
is written.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from schemas.messages import Usage
from schemas.settings.models import CHAT
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.runtime.runner import pending
from tasks.runtime.stage import ColumnStage, Context, Stage, services_asked
from tasks.services import Connections

LAST_RUNS = 5  # of a step, whose costs are averaged
# Guesses for one item of a step that was never run.
DEFAULT_SECONDS = 1.0
DEFAULT_REQUESTS, DEFAULT_BYTES = 5.0, 1_000_000.0  # of each service, the models' apart
DEFAULT_TOKENS = 2_000, 500  # of the question and the answer of one call of each role


@dataclass(frozen=True)
class StepEstimate:
    """What one step of a run would cost."""

    stage: str
    items: int = 1  # pending
    measured: int = 0  # items of earlier runs that the sums follow from; 0: the defaults
    seconds: float = DEFAULT_SECONDS
    requests: Mapping[str, float] = field(default_factory=dict)  # by "service kind"
    bytes: Mapping[str, float] = field(default_factory=dict)
    calls: float = 0.0  # to models
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    cost_usd: float | None = 0.0  # None: a price is not known
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Limit:
    """A limit of a service, a minute's or a day's, and the requests of a run that count in it."""

    kinds: tuple[str, ...]
    requests: float
    per_minute: float | None = None
    per_day: int | None = None

    @property
    def minutes(self) -> float:
        """How long these requests take at least."""
        return self.requests / self.per_minute if self.per_minute else 0.0

    @property
    def days(self) -> int:
        return max(1, math.ceil(self.requests / self.per_day)) if self.per_day else 1


def estimate(
    stages: Sequence[Stage | ColumnStage], settings_of: Mapping[str, Any], context: Context
) -> list[StepEstimate]:
    """What a run of these stages would cost now; `settings_of` holds the settings of each stage by its name."""
    found: list[StepEstimate] = []
    unmade: set[str] = set()  # tables with a row a picture that a step before writes and that do not exist yet
    growing: dict[str, str] = {}  # table -> the step before that has items pending and writes it
    for stage in stages:
        if isinstance(stage, Stage):
            settings, missing = settings_of[stage.name], sorted(unmade.intersection(stage.reads))
            if missing and found:
                items = found[-1].items
                notes = [f"{' and '.join(missing)} not made yet: all items of {found[-1].stage} are counted"]
            else:
                items = pending(stage, settings, context).height
                before = sorted({growing[table] for table in stage.reads if table in growing})
                notes = [f"what {' and '.join(before)} finds comes on top"] if before else []
            found.append(_times(item_cost(stage, settings, context), items, context.connections, notes))
            growing |= dict.fromkeys(stage.writes, stage.name) if items else {}
        contracts = [TABLES[table] for table in stage.writes]
        own = [one.name for one in contracts if one.key == ("image_id",) and not one.shared]
        unmade |= {table for table in own if context.lake.version(table) < 0}
    return found


def item_cost(stage: Stage, settings: Any, context: Context) -> StepEstimate:
    """What one item took in the last runs of the stage, or the defaults."""
    runs, calls = _last_runs(context.lake, stage.name), _last_calls(context.lake, stage.name)
    items, asked_for = int(runs["done"].sum()), calls["item_id"].n_unique()
    services = [service for service in services_asked(stage, settings) if service != CHAT]
    if not items and not asked_for:
        usage = _default_calls(stage, settings, context)
        requests, sizes = dict.fromkeys(services, DEFAULT_REQUESTS), dict.fromkeys(services, DEFAULT_BYTES)
        return StepEstimate(
            stage.name, 1, 0, DEFAULT_SECONDS, requests, sizes,
            usage.requests, usage.prompt_tokens, usage.completion_tokens, usage.cost_usd,
        )  # fmt: skip
    sent, received = Counter[str](), Counter[str]()
    for text in runs["sent_json"].drop_nulls():
        for kind, (number, size) in json.loads(text).items():
            if kind.partition(" ")[0] in services:
                sent[kind] += number
                received[kind] += size

    def each(rows: pl.DataFrame, column: str, of: int) -> float:
        return float(rows[column].sum()) / max(of, 1)

    return StepEstimate(
        stage.name,
        measured=items or asked_for,
        seconds=each(runs, "seconds", items) if items else DEFAULT_SECONDS,
        requests={kind: number / items for kind, number in sent.items()},
        bytes={kind: size / items for kind, size in received.items()},
        calls=calls.height / max(asked_for, 1),
        prompt_tokens=each(calls, "prompt_tokens", asked_for),
        completion_tokens=each(calls, "completion_tokens", asked_for),
        cost_usd=None if calls["cost_usd"].null_count() else each(calls, "cost_usd", asked_for),
    )


def _last_runs(lake: Lake, stage: str) -> pl.DataFrame:
    runs = lake.read("runs", columns=["kept", "rejected", "failed", "started_at", "finished_at", "sent_json", "stage"])
    return (
        runs.filter(pl.col("stage") == stage)
        .with_columns(
            done=pl.col("kept") + pl.col("rejected") + pl.col("failed"),
            seconds=(pl.col("finished_at") - pl.col("started_at")).dt.total_milliseconds() / 1e3,
        )
        .filter(pl.col("done") > 0)
        .sort("started_at")
        .tail(LAST_RUNS)
    )


def _last_calls(lake: Lake, stage: str) -> pl.DataFrame:
    """The calls of the last runs of a stage that paid for some."""
    columns = ["stage", "item_id", "run_id", "prompt_tokens", "completion_tokens", "cost_usd", "asked_at"]
    calls = lake.read("calls", columns=columns).filter(pl.col("stage") == stage).sort("asked_at")
    last = calls["run_id"].unique(maintain_order=True).tail(LAST_RUNS)
    return calls.filter(pl.col("run_id").is_in(last.implode()))


def _default_calls(stage: Stage, settings: Any, context: Context) -> Usage:
    models = context.connections.chat.models
    if CHAT not in services_asked(stage, settings) or models is None or stage.roles is None:
        return Usage()
    prices = [models.target(role, CHAT).price for role in stage.roles(settings)]
    costs = [None if price is None else price.of(*DEFAULT_TOKENS) for price in prices]
    return sum((Usage(*DEFAULT_TOKENS, cost, 1) for cost in costs), start=Usage())


def _times(one: StepEstimate, items: int, connections: Connections, notes: Sequence[str]) -> StepEstimate:
    requests = {kind: number * items for kind, number in one.requests.items()}
    at_least_s = 60 * max((limit.minutes for limit in limits(requests, connections)), default=0.0)
    return replace(
        one,
        items=items,
        seconds=max(one.seconds * items, at_least_s),
        requests=requests,
        bytes={kind: size * items for kind, size in one.bytes.items()},
        calls=one.calls * items,
        prompt_tokens=one.prompt_tokens * items,
        completion_tokens=one.completion_tokens * items,
        cost_usd=one.cost_usd * items if one.cost_usd is not None else None if items else 0.0,
        notes=notes,
    )


def limits(requests: Mapping[str, float], connections: Connections) -> list[Limit]:
    """Every limit that these requests, by "service kind", count in."""
    kinds: dict[tuple[str, str, float | None, int | None], list[str]] = {}
    for name in requests:
        service, _, kind = name.partition(" ")
        connection = connections.named(service)
        for allowance in connection.endpoint.allowances(kind) if connection else ():
            for minute, day in ((allowance.per_minute, None), (None, allowance.per_day)):
                if minute is not None or day is not None:
                    kinds.setdefault((service, allowance.name, minute, day), []).append(name)
    return [
        Limit(tuple(names), sum(requests[name] for name in names), minute, day)
        for (_, _, minute, day), names in kinds.items()
    ]
