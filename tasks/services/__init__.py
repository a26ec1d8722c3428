"""One client for each outside service, and the keys they need.

>>> connections = connect(settings.services, os.environ)
>>> chat = Chat(connections.chat)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace

from pydantic import SecretStr

from schemas.errors import GeofixError
from schemas.settings.services import Endpoint, ServicesSettings
from tasks.services.chat import Chat
from tasks.services.errors import ServiceError, safe_text, safe_url
from tasks.services.geocoder import Address, GeocodeCandidate, Geocoder
from tasks.services.http import Connection
from tasks.services.mapillary import Mapillary
from tasks.services.rate_budget import RateBudget
from tasks.services.search import Search, SearchResult
from tasks.services.stac import Stac

__all__ = [
    "Address",
    "Chat",
    "Connection",
    "Connections",
    "GeocodeCandidate",
    "Geocoder",
    "Mapillary",
    "MissingKeys",
    "Search",
    "SearchResult",
    "ServiceError",
    "Stac",
    "connect",
    "safe_text",
    "safe_url",
]


class MissingKeys(GeofixError):
    """Keys the configuration names are not in the environment."""


@dataclass(frozen=True)
class Connections:
    """Every service with its key; goes to workers as it is."""

    mapillary: Connection
    geocoder: Connection
    search: Connection
    chat: Connection
    stac: Connection
    trained: Connection | None = None

    def secrets(self) -> tuple[str, ...]:
        """The keys themselves, to be kept out of texts."""
        every = (self.mapillary, self.geocoder, self.search, self.chat, self.stac, self.trained)
        return tuple(c.key.get_secret_value() for c in every if c is not None and c.key is not None)

    def unaccepted_key(self, service: str | None, kind: str) -> str | None:
        """What the user can do about an error of this kind, where a key was not accepted."""
        connection = getattr(self, service, None) if service else None
        if kind != "auth" or connection is None:
            return None
        if connection.endpoint.public_key:
            return f"{service} does not accept services.{service}.public_key: give the one its offline world takes"
        if not connection.endpoint.key_env:
            return None
        return (
            f"{service} does not accept the key in {connection.endpoint.key_env}: "
            "put the right one into this environment variable and run again"
        )

    def sharing(self, rate_budget: RateBudget) -> "Connections":
        """The same, with the budgets of requests counted where others count theirs."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return Connections(**{name: one and replace(one, rate_budget=rate_budget) for name, one in every.items()})


def connect(services: ServicesSettings, env: Mapping[str, str], needed: Collection[str] | None = None) -> Connections:
    """The services with their keys from the environment, or MissingKeys naming all that are not there.

    With `needed`, only those services must have their keys: a plan needs none.
    """
    missing: list[str] = []

    def resolve(service: str, endpoint: Endpoint) -> Connection:
        # The public key first: a real key in the environment must not go to a server that needs none.
        if endpoint.public_key is not None:
            return Connection(service, endpoint, SecretStr(endpoint.public_key), services.contact)
        if endpoint.key_env is None:
            return Connection(service, endpoint, contact=services.contact)
        key = env.get(endpoint.key_env, "").strip()
        if not key and needed is not None and service not in needed:
            return Connection(service, endpoint, contact=services.contact)
        if not key:
            missing.append(f"{endpoint.key_env} (services.{service}.key_env)")
        elif not key.isascii() or not key.isprintable() or " " in key:
            # It could not be sent in a header, and the failure there would print it.
            missing.append(f"{endpoint.key_env} (services.{service}.key_env: set, but not a key)")
        return Connection(service, endpoint, SecretStr(key), services.contact)

    connections = Connections(
        mapillary=resolve("mapillary", services.mapillary),
        geocoder=resolve("geocoder", services.geocoder),
        search=resolve("search", services.search),
        chat=resolve("chat", services.chat),
        stac=resolve("stac", services.stac),
        trained=resolve("trained", services.trained) if services.trained else None,
    )
    if missing:
        raise MissingKeys("missing keys in the environment: " + ", ".join(missing))
    return connections
