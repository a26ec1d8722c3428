"""What calls to models cost and how long they take at least, by prices and limits of the model that is asked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from schemas.settings.models import CHAT, TRAINED
from schemas.settings.services import ChatEndpoint
from tasks.lake import Lake
from tasks.services.connections import Models

LAST_RUNS = 5  # of a step, whose costs are averaged


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

    def times(self, count: float) -> "ModelCost":
        return replace(
            self,
            calls=self.calls * count,
            prompt_tokens=self.prompt_tokens * count,
            completion_tokens=self.completion_tokens * count,
            cost_usd=None if self.cost_usd is None and count else (self.cost_usd or 0.0) * count,
        )


def model_cost(models: Models, role: str, calls: float, tokens: tuple[float, float], measured: int = 0) -> ModelCost:
    """So many calls of a role, of so many tokens each for question and answer, at today's price."""
    settings = models.settings.role(role)
    endpoint = settings.endpoint
    if endpoint == TRAINED:  # served by the run itself, which pays for its GPU and not for tokens
        return ModelCost(role, endpoint, settings.model, calls, calls * tokens[0], calls * tokens[1], 0.0, measured)
    target = models.target(role, CHAT)
    price = target.price
    money = None if price is None else calls * (tokens[0] * price.prompt + tokens[1] * price.completion) / 1e6
    return ModelCost(
        role, target.endpoint, target.model, calls, calls * tokens[0], calls * tokens[1], money, measured
    )  # fmt: skip


def history(lake: Lake, step: str, models: Models, roles: Iterable[str]) -> pl.DataFrame:
    """The calls of a step's last runs to the models that these roles are now; calls to others say nothing of them."""
    columns = ["stage", "item_id", "run_id", "role", "endpoint", "model", "prompt_tokens", "completion_tokens"]
    calls = lake.read("calls", columns=[*columns, "cost_usd", "asked_at"])
    wanted = pl.lit(False)
    for role in roles:
        settings = models.settings.role(role)
        if settings.endpoint == TRAINED:
            wanted |= pl.col("endpoint") == TRAINED
        else:
            target = models.target(role, CHAT)
            wanted |= (pl.col("endpoint") == target.endpoint) & (pl.col("model") == target.model)
    calls = calls.filter(pl.col("stage") == step).filter(wanted).sort("asked_at")
    last = calls["run_id"].unique(maintain_order=True).tail(LAST_RUNS)
    return calls.filter(pl.col("run_id").is_in(last.implode()))


def asked_models(lake: Lake, step: str) -> list[str]:
    """The models that a step has asked before."""
    calls = lake.read("calls", columns=["stage", "model"])
    return calls.filter(pl.col("stage") == step)["model"].drop_nulls().unique().sort().to_list()


def tokens_before(calls: pl.DataFrame, role: str, models: Models) -> tuple[tuple[float, float], int] | None:
    """Mean tokens of a role's question and answer in these calls, and how many they are; None where there is none."""
    is_trained = models.settings.role(role).endpoint == TRAINED
    mine = calls.filter(pl.col("endpoint") == TRAINED) if is_trained else calls.filter(pl.col("role") == role)
    if mine.is_empty():
        return None
    means = mine.select(pl.col("prompt_tokens", "completion_tokens").fill_null(0).mean()).row(0)
    return (float(means[0]), float(means[1])), mine.height


def least_hours(costs: Sequence[ModelCost], models: Models) -> dict[str, float | None]:
    """By endpoint, how long these calls take within its limits; None: it has none, and its speed is not known."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(cost.endpoint for cost in costs):
        mine = [cost for cost in costs if cost.endpoint == name]
        connection = models.endpoints.get(name)
        endpoint = connection.endpoint if connection is not None else None
        limits: Mapping[str, float | None] = {}
        if isinstance(endpoint, ChatEndpoint):
            limits = {"tokens": endpoint.tokens_per_minute, "calls": endpoint.requests_per_minute}
        amounts = {
            "tokens": sum(one.prompt_tokens + one.completion_tokens for one in mine),
            "calls": sum(one.calls for one in mine),
        }
        hours = [amounts[kind] / limit / 60 for kind, limit in limits.items() if limit]
        found[name] = max(hours) if hours else None
    return found
