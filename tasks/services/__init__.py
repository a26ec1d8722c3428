"""One client for each outside service, and the keys they need.

>>> connections = connect(settings.services, os.environ)
>>> chat = Chat(connections.chat)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic import SecretStr

from schemas.errors import InputError
from schemas.settings.models import CHAT, ModelsSettings
from schemas.settings.services import Endpoint, ServicesSettings
from tasks.services.calls import BudgetExhausted, CallLog
from tasks.services.chat import Chat
from tasks.services.errors import ServiceError, safe_text, safe_url
from tasks.services.geocoder import Address, GeocodeCandidate, Geocoder
from tasks.services.http import Connection
from tasks.services.mapillary import Mapillary
from tasks.services.models import Models
from tasks.services.rate_budget import RateBudget
from tasks.services.search import Search, SearchResult
from tasks.services.stac import Stac

__all__ = [
    "Address",
    "BudgetExhausted",
    "CallLog",
    "Chat",
    "Connection",
    "Connections",
    "GeocodeCandidate",
    "Geocoder",
    "Mapillary",
    "MissingKeys",
    "Models",
    "Search",
    "SearchResult",
    "ServiceError",
    "Stac",
    "connect",
    "safe_text",
    "safe_url",
]


class MissingKeys(InputError):
    """Keys the configuration names are not in the environment."""


@dataclass(frozen=True)
class Connections:
    """Every service with its key; goes to workers as it is."""

    mapillary: Connection
    geocoder: Connection
    search: Connection
    chat: Connection  # knows all roles, and the servers they are asked of
    stac: Connection
    maps: Connection
    trained: Connection | None = None
    tool_geocoder: Connection | None = None

    def every(self) -> tuple[Connection, ...]:
        """All of them, those of models included."""
        named = (getattr(self, each.name) for each in fields(self))
        others = self.chat.models.endpoints.values() if self.chat.models else ()
        return tuple(one for one in (*named, *others) if one is not None)

    def secrets(self) -> tuple[str, ...]:
        """The keys themselves, to be kept out of texts."""
        return tuple(dict.fromkeys(one.key.get_secret_value() for one in self.every() if one.key is not None))

    def unaccepted_key(self, service: str | None, kind: str) -> str | None:
        """What the user can do about an error of this kind, where a key was not accepted."""
        connection = next((one for one in self.every() if one.service == service), None)
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

        def shared(one: Connection | None) -> Connection | None:
            if one is None:
                return None
            return replace(one, rate_budget=rate_budget, models=one.models and one.models.sharing(rate_budget, calls))

        every: dict[str, Any] = {each.name: shared(getattr(self, each.name)) for each in fields(self)}
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
    endpoints of the roles that are to be asked, by default of all that the settings name.
    """
    missing: list[str] = []
    models = models or ModelsSettings()
    asked = {models.role(role).endpoint for role in (models.roles if roles is None else roles)}
    if roles is None and needed is not None and CHAT not in needed:
        asked = set()
    # Where all roles are asked of other endpoints, that of the name `chat` is not needed.
    needed = None if needed is None else ({one for one in needed if one != CHAT or not roles} | asked)

    def resolve(service: str, endpoint: Endpoint, is_needed: bool, section: str = "") -> Connection:
        # The public key first: a real key in the environment must not go to a server that needs none.
        where = section or f"services.{service}"
        if endpoint.public_key is not None:
            return Connection(service, endpoint, SecretStr(endpoint.public_key), services.contact, section=section)
        if endpoint.key_env is None:
            return Connection(service, endpoint, contact=services.contact, section=section)
        key = env.get(endpoint.key_env, "").strip()
        if not key and not is_needed:
            return Connection(service, endpoint, contact=services.contact, section=section)
        if not key:
            missing.append(f"{endpoint.key_env} ({where}.key_env)")
        elif not key.isascii() or not key.isprintable() or " " in key:
            # It could not be sent in a header, and the failure there would print it.
            missing.append(f"{endpoint.key_env} ({where}.key_env: set, but not a key)")
        return Connection(service, endpoint, SecretStr(key), services.contact, section=section)

    def service(name: str) -> Connection:
        return resolve(name, getattr(services, name), needed is None or name in needed)

    endpoints = {
        name: resolve(name, endpoint, needed is None or name in needed, f"models.endpoints.{name}")
        for name, endpoint in models.endpoints.items()
    }
    chat, trained = service("chat"), service("trained") if services.trained else None
    endpoints["chat"] = chat
    if trained is not None:
        endpoints["trained"] = trained
    every = Models(models, endpoints)
    connections = Connections(
        mapillary=service("mapillary"),
        geocoder=service("geocoder"),
        search=service("search"),
        chat=replace(chat, models=every),
        stac=service("stac"),
        maps=service("maps"),
        tool_geocoder=service("tool_geocoder") if services.tool_geocoder else None,
        trained=trained and replace(trained, models=every),
    )
    if missing:
        raise MissingKeys("missing keys in the environment: " + ", ".join(missing))
    return connections
