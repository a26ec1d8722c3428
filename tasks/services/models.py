"""Which server and which model a role is asked of, and with which parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from schemas.errors import StageRefused
from schemas.settings.models import TRAINED, ModelsSettings, Role
from schemas.settings.services import ChatEndpoint, Price
from tasks.services.calls import CallLog
from tasks.services.http import Connection
from tasks.services.rate_budget import RateBudget

_BODY = {"top_k"}  # not of OpenAI's protocol, but of most servers of open models: goes along as a further field


@dataclass(frozen=True)
class Target:
    """A role, resolved."""

    role: str
    endpoint: str  # its name
    model: str | None  # None: the only one that the endpoint serves
    settings: Role
    price: Price | None

    @property
    def is_free(self) -> bool:
        """Whether the model is known to cost nothing."""
        return self.price is not None and self.price.of(1, 1) == 0

    def parameters(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(fields of the request, further fields of its body): what is asked for, else what the role says."""
        role = self.settings
        sent = self._defaults | {name: value for name, value in asked.items() if value is not None}
        sent.pop("extra_body", None)
        if sent.get("n") == 1:
            del sent["n"]
        for name in role.omit:
            sent.pop(name, None)
        if "max_tokens" in sent and role.token_limit != "max_tokens":
            sent[role.token_limit] = sent.pop("max_tokens")
        body = {name: sent.pop(name) for name in _BODY if name in sent}
        return sent, {**body, **role.extra_body, **(asked.get("extra_body") or {})}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """What the role says, temperature 0 if nothing."""
        named = {name: getattr(self.settings, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        return {"temperature": 0} | {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Models:
    """The roles and the servers of their models; goes to workers as it is."""

    settings: ModelsSettings = field(default_factory=ModelsSettings)
    endpoints: Mapping[str, Connection] = field(default_factory=dict)
    calls: CallLog | None = None  # where calls are written down; None: nowhere

    def target(self, role: str, default: str) -> Target:
        """What a role is asked of; `default` is the endpoint of roles that are not named in the settings."""
        found = self.settings.role(role)
        name = found.endpoint
        if role not in self.settings.roles and name != TRAINED:
            name = default
        connection = self.endpoints.get(name)
        if connection is None:
            raise StageRefused(f"role '{role}' is asked of the endpoint '{name}', but services.{name} names no server")
        endpoint = connection.endpoint
        model = found.model or (None if name == TRAINED else role)
        listed = endpoint.price_of(model) if isinstance(endpoint, ChatEndpoint) else None
        return Target(role, name, model, found, found.price or listed)

    def sharing(self, rate_budget: RateBudget, calls: CallLog | None) -> "Models":
        """The same, with requests and calls counted where others count theirs."""
        endpoints = {name: replace(one, rate_budget=rate_budget) for name, one in self.endpoints.items()}
        return replace(self, endpoints=endpoints, calls=calls)
