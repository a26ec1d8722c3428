"""Which server a service or a role goes to, with which key, model and parameters.

>>> connections = connect(settings.services, os.environ)
>>> chat = Chat(connections.chat)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from pydantic import SecretStr

from schemas.errors import InputError, StageRefused
from schemas.settings.models import CHAT, TRAINED, ModelsSettings, Role, pool_endpoint
from schemas.settings.services import ChatEndpoint, Endpoint, Price, ServicesSettings, ToolsSettings
from tasks.services.calls import CallLog
from tasks.services.rate_budget import RateBudget
from tasks.services.transport import Connection

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

    def parameters(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(fields of the request, further fields of its body): what is requested, else what the role says."""
        role = self.settings
        sent = self._defaults | {name: value for name, value in request.items() if value is not None}
        sent.pop("extra_body", None)
        if sent.get("n") == 1:
            del sent["n"]
        for name in role.omit:
            sent.pop(name, None)
        if "max_tokens" in sent and role.token_limit != "max_tokens":
            sent[role.token_limit] = sent.pop("max_tokens")
        body = {name: sent.pop(name) for name in _BODY if name in sent}
        return sent, {**body, **role.extra_body, **(request.get("extra_body") or {})}

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
        """Where a role goes; `default` is the endpoint of roles that are not named in the settings."""
        settings = self.settings.role(role)
        name = settings.endpoint
        if role not in self.settings.roles and name != TRAINED:
            name = default
        connection = self.endpoints.get(name)
        if connection is None:
            raise StageRefused(f"role '{role}' goes to the endpoint '{name}', but services.{name} names no server")
        endpoint = connection.endpoint
        model = settings.model or (None if name == TRAINED else role)
        listed = endpoint.price_of(model) if isinstance(endpoint, ChatEndpoint) else None
        return Target(role, name, model, settings, settings.price or listed)

    def sharing(self, rate_budget: RateBudget, calls: CallLog | None) -> "Models":
        """The same, with requests and calls counted where others count theirs."""
        endpoints = {name: replace(endpoint, rate_budget=rate_budget) for name, endpoint in self.endpoints.items()}
        return replace(self, endpoints=endpoints, calls=calls)


@dataclass(frozen=True)
class ChatConnection(Connection):
    """A chat service that knows the roles, and the other servers that they may go to."""

    models: Models = field(default_factory=Models, repr=False, compare=False)

    @classmethod
    def of(cls, connection: Connection, models: Models) -> "ChatConnection":
        """The same connection, with these roles."""
        own = {each.name: getattr(connection, each.name) for each in fields(Connection)}
        return cls(**own, models=models)


class MissingKeys(InputError):
    """Keys the configuration names are not in the environment."""


@dataclass(frozen=True)
class Connections:
    """Every service with its key; goes to workers as it is."""

    geocoder: Connection
    search: Connection
    image_search: Connection
    chat: ChatConnection
    stac: Connection
    maps: Connection
    trained: ChatConnection | None = None
    tool_geocoder: Connection | None = None
    answer_geocoder: Connection | None = None  # none: the packaged gazetteer
    tools: ToolsSettings = field(default_factory=ToolsSettings)  # whether tools ask these services at all
    world_maps: Connection | None = None
    street_view: Mapping[str, Connection] = field(default_factory=dict)  # by the provider's name

    def every(self) -> tuple[Connection, ...]:
        """All of them, those of models included."""
        named = (getattr(self, each.name) for each in fields(self))
        every = (*self.street_view.values(), *named, *self.chat.models.endpoints.values())
        return tuple(connection for connection in every if isinstance(connection, Connection))

    def named(self, service: str) -> Connection | None:
        """The service of this name, where there is one; InputError where nothing says where it is."""
        if service not in self.street_view and not hasattr(self, service):
            raise InputError(f"collect.providers: services.street_view.{service}.base_url must say where {service} is")
        connection: Connection | None = self.street_view.get(service) or getattr(self, service)
        return connection

    def secrets(self) -> tuple[str, ...]:
        """The keys themselves, to be kept out of texts."""
        return tuple(
            dict.fromkeys(
                connection.key.get_secret_value() for connection in self.every() if connection.key is not None
            )
        )

    def unaccepted_key(self, service: str | None, kind: str) -> str | None:
        """What the user can do about an error of this kind, where a key was not accepted."""
        connection = next((candidate for candidate in self.every() if candidate.service == service), None)
        if kind != "auth" or connection is None:
            return None
        section = connection.section or f"services.{service}"
        if connection.endpoint.public_key:
            return f"{service} does not accept {section}.public_key: give the one its offline world takes"
        if not connection.endpoint.key_env:
            return None
        return (
            f"{service} does not accept the key in {connection.endpoint.key_env}: "
            "put the right one into this environment variable and run again"
        )

    def sharing(self, rate_budget: RateBudget, calls: CallLog | None = None) -> "Connections":
        """The same, with budgets of requests, and calls to models, counted where others count theirs."""

        def shared(connection: Any) -> Any:
            if isinstance(connection, ChatConnection):
                connection = replace(connection, models=connection.models.sharing(rate_budget, calls))
            return replace(connection, rate_budget=rate_budget) if isinstance(connection, Connection) else connection

        every: dict[str, Any] = {each.name: shared(getattr(self, each.name)) for each in fields(self)}
        every["street_view"] = {name: shared(connection) for name, connection in self.street_view.items()}
        return Connections(**every)


def connect(
    services: ServicesSettings,
    env: Mapping[str, str],
    needed: Collection[str] | None = None,
    models: ModelsSettings | None = None,
    roles: Collection[str] | None = None,
) -> Connections:
    """The services with their keys from the environment, or MissingKeys naming all that are not there.

    With `needed`, only those services must have their keys: a plan needs none. Where `chat` is among them, so must the
    endpoints of the roles that are to be queried, by default of all that the settings name.
    """
    missing: list[str] = []
    models = models or ModelsSettings()
    chat_endpoints = {models.role(role).endpoint for role in (models.roles if roles is None else roles)}
    if roles is None and needed is not None and CHAT not in needed:
        chat_endpoints = set()
    # Where all roles go to other endpoints, that of the name `chat` is not needed.
    needed = (
        None if needed is None else ({service for service in needed if service != CHAT or not roles} | chat_endpoints)
    )

    def resolve(service: str, endpoint: Endpoint, is_needed: bool, section: str = "") -> Connection:
        key = endpoint.public_key  # first: a real key in the environment must not go to a server that needs none
        if key is None and endpoint.key_env is not None:
            key = env.get(endpoint.key_env, "").strip() or None
            where = f"{endpoint.key_env} ({section or f'services.{service}'}.key_env"
            if key is None and is_needed:
                missing.append(f"{where})")
            elif key is not None and (not key.isascii() or not key.isprintable() or " " in key):
                # It could not be sent in a header, and the failure there would print it.
                missing.append(f"{where}: set, but not a key)")
        return Connection(service, endpoint, None if key is None else SecretStr(key), services.contact, section=section)

    def service(name: str) -> Connection:
        asked_with = {"world_maps": "maps"}.get(name, name)  # the tools of a map ask both
        return resolve(name, getattr(services, name), needed is None or asked_with in needed)

    endpoints = {
        name: resolve(name, endpoint, needed is None or name in needed, f"models.endpoints.{name}")
        for name, endpoint in models.endpoints.items()
    }
    for name, pool in models.pools.items():  # not up yet: prices and limits are known, the address is not
        if name != TRAINED:
            endpoints[name] = Connection(name, pool_endpoint(pool, pool.model), section=f"models.pools.{name}")
    chat, trained = service("chat"), service("trained") if services.trained else None
    endpoints["chat"] = chat
    if trained is not None:
        endpoints["trained"] = trained
    every = Models(models, endpoints)
    street_view = {
        name: resolve(
            name,
            endpoint,
            needed is None or name in needed,
            f"services.street_view.{name}" if name in services.street_view else "",
        )
        for name, endpoint in services.providers().items()
    }
    names = ("geocoder", "search", "image_search", "stac", "maps", "tool_geocoder", "answer_geocoder", "world_maps")
    connections = Connections(
        chat=ChatConnection.of(chat, every),
        tools=services.tools,
        trained=ChatConnection.of(trained, every) if trained is not None else None,
        street_view=street_view,
        **{name: service(name) for name in names if getattr(services, name)},
    )
    if missing:
        raise MissingKeys("missing keys in the environment: " + ", ".join(missing))
    return connections
