"""What a run would cost: the items that are pending, times what the last runs of the step took for one of them.

Time, requests and bytes come from the table `runs`; calls and tokens from `calls`, which also holds what a killed run
paid for, as far as they were of the models that would answer now; money follows from today's prices. A step that was
never run with these models gets the defaults below, and says so. No service is queried and nothing is written.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from schemas.messages import Usage
from schemas.settings.models import CHAT, TRAINED
from schemas.settings.services import ChatEndpoint
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.runtime.runner import pending
from tasks.runtime.stage import ColumnStage, Context, Stage, services_asked
from tasks.services import Connections
from tasks.services.connections import Models

LAST_RUNS = 5  # of a step, whose costs are averaged
# Guesses for one item of a step that was never run.
DEFAULT_SECONDS = 1.0
DEFAULT_REQUESTS, DEFAULT_BYTES = 5.0, 1_000_000.0  # of each service, the models' apart
DEFAULT_TOKENS = 2_000, 500  # of the question and the answer of one call of each role, where no more is assumed

# (step, its settings, pending items) -> (role, calls, tokens of a question and of an answer), where it was never run
Assumed = Callable[[str, Any, int], Iterable[tuple[str, float, tuple[float, float]]]]


@dataclass(frozen=True)
class ModelCost:
    """Calls to the model of one role."""

    role: str
    endpoint: str
    model: str | None  # None: the one that is served
    calls: float
    prompt_tokens: float
    completion_tokens: float
    cost_usd: float | None  # None: its price is not known
    measured: int = 0  # calls to this very model that the tokens follow from; 0: an assumption


@dataclass(frozen=True)
class StepEstimate:
    """What one step of a run would cost."""

    stage: str
    items: int  # pending
    measured: int  # items of earlier runs that the sums follow from; 0: the defaults
    seconds: float
    requests: Mapping[str, float]  # by "service kind"
    bytes: Mapping[str, float]
    models: Sequence[ModelCost]
    notes: Sequence[str] = ()

    @property
    def calls(self) -> float:
        """To models."""
        return sum(cost.calls for cost in self.models)

    @property
    def usage(self) -> Usage:
        """Tokens and money; a price that is not known leaves the money unknown."""
        usages = (
            Usage(round(cost.prompt_tokens), round(cost.completion_tokens), cost.cost_usd) for cost in self.models
        )
        return sum(usages, start=Usage())

    def to_dict(self) -> dict[str, Any]:
        """For a machine."""
        return asdict(self) | asdict(self.usage) | {"requests": dict(self.requests), "calls": self.calls}


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
    stages: Sequence[Stage | ColumnStage],
    settings_of: Mapping[str, Any],
    context: Context,
    assumed: Assumed = lambda step, settings, items: (),
) -> list[StepEstimate]:
    """What a run of these stages would cost now; `settings_of` holds the settings of each stage by its name."""
    estimates: list[StepEstimate] = []
    unmade: set[str] = set()  # tables with a row a picture that a step before writes and that do not exist yet
    growing: dict[str, str] = {}  # table -> the step before that has items pending and writes it
    for stage in stages:
        if isinstance(stage, Stage):
            settings, missing = settings_of[stage.name], sorted(unmade.intersection(stage.reads))
            if missing and estimates:
                items = estimates[-1].items
                notes = [f"{' and '.join(missing)} not made yet: all items of {estimates[-1].stage} are counted"]
            else:
                items = pending(stage, settings, context).height
                before = sorted({growing[table] for table in stage.reads if table in growing})
                notes = [f"what {' and '.join(before)} finds comes on top"] if before else []
            estimates.append(_step_estimate(stage, settings, context, items, notes, assumed))
            growing |= dict.fromkeys(stage.writes, stage.name) if items else {}
        contracts = [TABLES[table] for table in stage.writes]
        own = [contract.name for contract in contracts if contract.key == ("image_id",) and not contract.shared]
        unmade |= {table for table in own if context.lake.version(table) < 0}
    return estimates


def _step_estimate(
    stage: Stage, settings: Any, context: Context, items: int, notes: Sequence[str], assumed: Assumed
) -> StepEstimate:
    """So many items at what one took in the last runs of the stage, or at the defaults."""
    models, services = context.connections.chat.models, services_asked(stage, settings)
    roles = dict.fromkeys(stage.roles(settings)) if CHAT in services and stage.roles else ()
    services = tuple(service for service in services if service != CHAT)
    runs, calls = _last_runs(context.lake, stage.name), history(context.lake, stage.name, models, roles)
    done, asked_for = int(runs["done"].sum()), calls["item_id"].n_unique()
    seconds, sent, received = DEFAULT_SECONDS * items, Counter[str](), Counter[str]()
    costs = []
    if (is_measured := bool(asked_for)) or (done and not _asked_before(context.lake, stage.name)):
        for text in runs["sent_json"].drop_nulls():
            for kind, (number, size) in json.loads(text).items():
                if kind.partition(" ")[0] in services:
                    sent[kind] += number * items / done
                    received[kind] += size * items / done
        seconds = float(runs["seconds"].sum()) / done * items if done else seconds
        known = {role: tokens_before(calls, role, models) for role in roles if is_measured}
        costs = [model_cost(models, role, n / asked_for * items, t, n) for role, (t, n) in known.items() if n]
        measured = done or asked_for
    else:  # what other models took says nothing of these
        measured = 0
        sent.update(dict.fromkeys(services, DEFAULT_REQUESTS * items))
        received.update(dict.fromkeys(services, DEFAULT_BYTES * items))
        calls_of: dict[str, tuple[float, tuple[float, float]]] = dict.fromkeys(roles, (items, DEFAULT_TOKENS))
        calls_of |= {role: (n, t) for role, n, t in assumed(stage.name, settings, items) if role in calls_of}
        costs = [model_cost(models, role, n, t) for role, (n, t) in calls_of.items()]
    least = [60 * limit.minutes for limit in limits(sent, context.connections)]
    least += [3600 * (hours or 0.0) for hours in least_hours(costs, models).values()]
    return StepEstimate(stage.name, items, measured, max([seconds, *least]), dict(sent), dict(received), costs, notes)


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


def _asked_before(lake: Lake, step: str) -> bool:
    return lake.read("calls", columns=["stage", "model"]).filter(pl.col("stage") == step)["model"].count() > 0


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


# Models ------------------------------------------------------------------------------------------------------


def model_cost(models: Models, role: str, calls: float, tokens: tuple[float, float], measured: int = 0) -> ModelCost:
    """So many calls of a role, of so many tokens each for question and answer, at today's price."""
    settings = models.settings.role(role)
    question, answer = calls * tokens[0], calls * tokens[1]
    if settings.endpoint == TRAINED:  # served by the run itself, which pays for its GPU and not for tokens
        return ModelCost(role, TRAINED, settings.model, calls, question, answer, 0.0, measured)
    target = models.target(role, CHAT)
    price = target.price
    money = None if price is None else (question * price.prompt + answer * price.completion) / 1e6
    return ModelCost(role, target.endpoint, target.model, calls, question, answer, money, measured)


def history(lake: Lake, step: str, models: Models, roles: Iterable[str]) -> pl.DataFrame:
    """The calls of a step's last runs to the models that these roles are now; calls to others say nothing of them."""
    columns = ["stage", "item_id", "run_id", "role", "endpoint", "model", "prompt_tokens", "completion_tokens"]
    wanted = pl.lit(False)
    for role in roles:
        if models.settings.role(role).endpoint == TRAINED:
            wanted |= pl.col("endpoint") == TRAINED
        else:
            target = models.target(role, CHAT)
            wanted |= (pl.col("endpoint") == target.endpoint) & (pl.col("model") == target.model)
    calls = lake.read("calls", columns=[*columns, "asked_at"])
    calls = calls.filter(pl.col("stage") == step).filter(wanted).sort("asked_at")
    last = calls["run_id"].unique(maintain_order=True).tail(LAST_RUNS)
    return calls.filter(pl.col("run_id").is_in(last.implode()))


def tokens_before(calls: pl.DataFrame, role: str, models: Models) -> tuple[tuple[float, float], int]:
    """Mean tokens of a role's question and answer in these calls, and how many they are."""
    is_trained = models.settings.role(role).endpoint == TRAINED
    mine = calls.filter(pl.col("endpoint") == TRAINED if is_trained else pl.col("role") == role)
    question, answer = mine.select(pl.col("prompt_tokens", "completion_tokens").fill_null(0).mean()).row(0)
    return (float(question or 0), float(answer or 0)), mine.height


def least_hours(costs: Sequence[ModelCost], models: Models) -> dict[str, float | None]:
    """By endpoint, how long these calls take within its limits; None: it has none, and its speed is not known."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(cost.endpoint for cost in costs):
        mine = [cost for cost in costs if cost.endpoint == name]
        tokens = sum(cost.prompt_tokens + cost.completion_tokens for cost in mine)
        connection = models.endpoints.get(name)
        endpoint = connection.endpoint if connection is not None else None
        hours = []
        if isinstance(endpoint, ChatEndpoint):
            minutes = endpoint.tokens_per_minute, endpoint.requests_per_minute
            amounts = tokens, sum(cost.calls for cost in mine)
            hours = [amount / limit / 60 for amount, limit in zip(amounts, minutes, strict=True) if limit]
        found[name] = max(hours, default=None)
    return found
