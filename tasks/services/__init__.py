"""One client for each outside service, and the keys they need.

>>> connections = connect(settings.services, os.environ)
>>> chat = Chat(connections.chat)
"""

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
