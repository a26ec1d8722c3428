"""What a run would cost: the items that are pending, times what the last runs of the step took for one of them.

Time, requests and bytes come from the table `runs`; calls and tokens from `calls`, which also holds what a killed run
paid for, as far as they were of the models that would be asked now; money follows from today's prices. A step that was
never run with these models gets the defaults below, and says so. No service is asked and nothing is written.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from schemas.settings.models import CHAT
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.runtime.model_costs import (
    LAST_RUNS,
    ModelCost,
    asked_models,
    history,
    least_hours,
    model_cost,
    tokens_before,
)
from tasks.runtime.runner import pending
from tasks.runtime.stage import ColumnStage, Context, Stage, services_asked
from tasks.services import Connections

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
    models: Sequence[ModelCost] = ()  # the same by role
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
        own = [contract.name for contract in contracts if contract.key == ("image_id",) and not contract.shared]
        unmade |= {table for table in own if context.lake.version(table) < 0}
    return found


def item_cost(stage: Stage, settings: Any, context: Context) -> StepEstimate:
    """What one item took in the last runs of the stage, or the defaults."""
    models, roles = context.connections.chat.models, _roles(stage, settings)
    runs, calls = _last_runs(context.lake, stage.name), history(context.lake, stage.name, models, roles)
    items, asked_for = int(runs["done"].sum()), calls["item_id"].n_unique()
    services = [service for service in services_asked(stage, settings) if service != CHAT]
    is_of_others = not asked_for and asked_models(context.lake, stage.name)  # which say nothing of these models
    if is_of_others or not (items or asked_for):
        costs = [model_cost(models, role, 1, DEFAULT_TOKENS) for role in roles]
        requests, sizes = dict.fromkeys(services, DEFAULT_REQUESTS), dict.fromkeys(services, DEFAULT_BYTES)
        return _with_models(StepEstimate(stage.name, requests=requests, bytes=sizes), costs)
    sent, received = Counter[str](), Counter[str]()
    for text in runs["sent_json"].drop_nulls():
        for kind, (number, size) in json.loads(text).items():
            if kind.partition(" ")[0] in services:
                sent[kind] += number
                received[kind] += size
    costs = []
    for role in roles:
        before = tokens_before(calls, role, models)
        if before is not None:
            costs.append(model_cost(models, role, before[1] / max(asked_for, 1), *before))
    found = StepEstimate(
        stage.name,
        measured=items or asked_for,
        seconds=float(runs["seconds"].sum()) / items if items else DEFAULT_SECONDS,
        requests={kind: number / items for kind, number in sent.items()},
        bytes={kind: size / items for kind, size in received.items()},
    )
    return _with_models(found, costs)


def _roles(stage: Stage, settings: Any) -> tuple[str, ...]:
    if CHAT not in services_asked(stage, settings) or stage.roles is None:
        return ()
    return tuple(dict.fromkeys(stage.roles(settings)))


def _with_models(one: StepEstimate, costs: Sequence[ModelCost]) -> StepEstimate:
    known = [cost.cost_usd for cost in costs]
    return replace(
        one,
        calls=sum(cost.calls for cost in costs),
        prompt_tokens=sum(cost.prompt_tokens for cost in costs),
        completion_tokens=sum(cost.completion_tokens for cost in costs),
        cost_usd=None if None in known else sum(cost or 0.0 for cost in known),
        models=tuple(costs),
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


def _times(one: StepEstimate, items: int, connections: Connections, notes: Sequence[str]) -> StepEstimate:
    requests = {kind: number * items for kind, number in one.requests.items()}
    costs = [cost.times(items) for cost in one.models]
    hours = [hours or 0.0 for hours in least_hours(costs, connections.chat.models).values()]
    at_least_s = max(
        60 * max((limit.minutes for limit in limits(requests, connections)), default=0.0),
        3600 * max(hours, default=0.0),
    )
    return _with_models(
        replace(
            one,
            items=items,
            seconds=max(one.seconds * items, at_least_s),
            requests=requests,
            bytes={kind: size * items for kind, size in one.bytes.items()},
            notes=notes,
        ),
        costs,
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
