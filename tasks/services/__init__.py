"""One client for each outside service, and the keys they need.

>>> connections = connect(settings.services, os.environ)
>>> chat = Chat(connections.chat)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.services.calls import BudgetExhausted, CallLog
    from tasks.services.chat import Chat
    from tasks.services.connections import Connections, MissingKeys, Models, connect
    from tasks.services.errors import ServiceError, safe_text, safe_url
    from tasks.services.geocoder import Address, GeocodeCandidate, Geocoder
    from tasks.services.search import Search, SearchResult
    from tasks.services.transport import Connection

__all__ = [
    "Address",
    "BudgetExhausted",
    "CallLog",
    "Chat",
    "Connection",
    "Connections",
    "GeocodeCandidate",
    "Geocoder",
    "MissingKeys",
    "Models",
    "Search",
    "SearchResult",
    "ServiceError",
    "connect",
    "safe_text",
    "safe_url",
]

_MODULES = {
    "calls": ("BudgetExhausted", "CallLog"),
    "chat": ("Chat",),
    "connections": ("Connections", "MissingKeys", "Models", "connect"),
    "errors": ("ServiceError", "safe_text", "safe_url"),
    "geocoder": ("Address", "GeocodeCandidate", "Geocoder"),
    "search": ("Search", "SearchResult"),
    "transport": ("Connection",),
}


def __getattr__(name: str) -> Any:
    """A client is imported when it is first named: all of them take a second, and most commands need none."""
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
