"""Which model does what: roles, the servers their models run on, prices, and how much money may be spent.

A role is the name a stage asks by (judge, observer, planner, answerer-base …). A role that is not named here goes
to the endpoint `chat` (`services.chat`) as a model of the role's own name. `trained` and `trained:<model id>` go
to the endpoint `trained` (`services.trained`). A pool is an endpoint that the flow brings up.
"""

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.pools import TRAINED_MODELS, Pool
from schemas.settings.services import Price, TrainedEndpoint

CHAT, TRAINED = "chat", "trained"  # endpoints whose settings stand under `services`
NOT_UP = "http://127.0.0.1:9/v1"  # stands for the address of a pool that is not up
_POOL_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")  # part of an address

Parameter = Literal[
    "temperature", "top_p", "top_k", "seed", "max_tokens", "tool_choice", "response_format", "parallel_tool_calls"
]


class ModelEndpoint(TrainedEndpoint):
    """A server of models that speaks the OpenAI chat completions protocol."""


class Role(Settings):
    """The model behind a role. What a stage asks for itself, such as its temperature, goes before what stands here."""

    endpoint: str = Field(
        CHAT, min_length=1, description="`chat`, `trained`, or a name under models.endpoints or pools"
    )
    model: str | None = Field(None, min_length=1, description="name its server knows it by; null: the role's own name")
    temperature: float | None = Field(None, ge=0, le=2, description="where the stage names none; null: 0")
    top_p: float | None = Field(None, gt=0, le=1, description="nucleus sampling; null: the server's default")
    top_k: int | None = Field(None, ge=1, description="top-k sampling (vLLM, SGLang); null: the server's default")
    max_tokens: int | None = Field(None, ge=1, description="longest answer where the stage names none")
    token_limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the server calls the longest answer; newer OpenAI models want the second"
    )
    omit: tuple[Parameter, ...] = Field((), description="parameters that the server refuses: they are not sent")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="further fields of every request")
    price: Price | None = Field(None, description="of this role's model; null: what the endpoint says of the model")


class ModelsSettings(Settings):
    """Models by role, and the money they may cost."""

    endpoints: dict[str, ModelEndpoint] = Field(
        default_factory=dict, description="servers of models besides services.chat, by name"
    )
    pools: dict[str, Pool] = Field(
        default_factory=dict, description="models that are brought up on the cluster while stages ask them, by name"
    )
    pool_port: int = Field(
        8000,
        ge=1,
        le=65535,
        description="of Ray Serve on the head of a cluster; a private Ray takes one that is free",
        json_schema_extra=OPERATIONAL,
    )
    roles: dict[str, Role] = Field(default_factory=dict, description="role -> its endpoint, model, sampling and price")
    budget_usd: float | None = Field(
        None,
        ge=0,
        description="US dollars that all calls on this lake may cost together, earlier runs included; null: no limit",
        json_schema_extra=OPERATIONAL,
    )
    replay: bool = Field(
        True,
        description="answer a request from the table `calls` if it was answered before",
        json_schema_extra=OPERATIONAL,
    )

    @model_validator(mode="after")
    def _endpoints_exist(self) -> "ModelsSettings":
        for name in (CHAT, TRAINED):
            if name in self.endpoints:
                raise ValueError(f"endpoints: '{name}' is set under services.{name}")
        for name, pool in self.pools.items():
            if name in (CHAT, *self.endpoints):
                raise ValueError(f"pools: '{name}' is the name of an endpoint; give the pool another one")
            if not _POOL_NAME.fullmatch(name):
                raise ValueError(f"pools: '{name[:50]}' must be up to 40 lower-case letters, digits and hyphens")
            if (name == TRAINED) != (pool.model == TRAINED_MODELS):
                raise ValueError(
                    f"pools.{name}: model '{TRAINED_MODELS}', whichever trained models a stage asks, belongs to the "
                    f"pool '{TRAINED}', and no other model does"
                )
        known = (CHAT, TRAINED, *self.endpoints, *(name for name in self.pools if name != TRAINED))
        for name, role in self.roles.items():
            if role.endpoint not in known:
                raise ValueError(
                    f"roles.{name}.endpoint: there is no endpoint '{role.endpoint}'; there are {', '.join(known)}"
                )
        return self

    def role(self, name: str) -> Role:
        """What is set for a role, or what holds for one that is not named."""
        chosen = self.roles.get(name)
        if chosen is not None:
            pool = self.pools.get(chosen.endpoint)
            return chosen if pool is None or chosen.model else chosen.model_copy(update={"model": pool.model})
        if name == TRAINED or name.startswith(f"{TRAINED}:"):
            return Role(endpoint=TRAINED, model=name.partition(":")[2] or None)
        return Role(model=name)


def pool_endpoint(pool: Pool, model: str, base_url: str = NOT_UP, actors: tuple[str, ...] = ()) -> ModelEndpoint:
    """The endpoint that a pool is. Its calls cost nothing by themselves where the price of its GPU seconds is known."""
    free = Price(prompt=0, completion=0, source="GPU seconds are counted instead")
    return ModelEndpoint(
        base_url=base_url,
        actors=actors,
        identity_url=NOT_UP,  # the same wherever the pool runs
        prices={} if pool.gpus and pool.usd_per_gpu_second is None else {model: free},
        # While a lost replica is replaced there is no answer: requests wait as long as a start may take.
        max_attempts=10,
        outage_patience_s=pool.start_s,
        total_timeout_s=max(300.0, pool.start_s),
        timeout_s=max(180.0, pool.start_s),
    )
