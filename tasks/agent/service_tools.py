"""The tools over the services that a configuration names, with the answers that are kept beside a lake."""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from tasks.agent.recording import Recording
from tasks.agent.toolbox import RESULT_CHARS, Toolbox, ToolResponses
from tasks.agent.tools import TOOLS, ToolContext
from tasks.services import Connection, Connections
from tasks.services.calls import server_of
from tasks.services.geocoder import open_geocoder
from tasks.services.image_search import ImageSearch
from tasks.services.maps import open_maps
from tasks.services.response_store import FILE, ResponseStore
from tasks.services.search import open_search


class ToolService(str):
    """The name of a service that only tools ask: with recorded answers it is not needed."""


def tool_services(names: Iterable[str]) -> tuple[ToolService, ...]:
    """The services that these tools ask."""
    return tuple(
        ToolService(service)
        for service in sorted({TOOLS[name].service or "" for name in names if name in TOOLS} - {""})
    )


def open_toolbox(connections: Connections, state: Path | None, result_chars: int = RESULT_CHARS) -> Toolbox:
    """The tools; answers of services are kept where the run's calls to models are, or in the folder `state`, if any."""
    if connections.tools.recording is not None:
        return Toolbox(None, result_chars, Recording(connections.tools.recording, connections.tools.tolerance))
    context = ToolContext(
        search=open_search(connections.search),
        image_search=ImageSearch(connections.image_search),
        geocoder=open_geocoder(connections.tool_geocoder or connections.geocoder),
        maps=open_maps(connections.maps, connections.world_maps),
    )
    if state is None and connections.tools.mode == "live":
        return Toolbox(context, result_chars)
    calls = connections.chat.models.calls if connections.chat.models else None
    if calls is None and state is None:
        return Toolbox(context, result_chars)
    store = calls.store if calls else ResponseStore((state or Path()) / FILE)
    whom = asked_services(connections), asked_services(connections, of_pictures=True)
    return Toolbox(context, result_chars, ToolResponses(store, *whom))


def asked_services(connections: Connections, of_pictures: bool = False) -> str:
    """Whom the tools ask, in one line; those that send a part of the picture have one of their own."""
    names = dict.fromkeys(spec.service for spec in TOOLS.values() if spec.service and spec.needs_picture == of_pictures)
    clients = [_connection(connections, name) for name in names]
    urls = (client.endpoint.base_url for client in (*clients, connections.world_maps) if client is not None)
    return " ".join(f"{server_of(url)} {urlsplit(url).path}" for url in urls)


def _connection(connections: Connections, service: str) -> Connection | None:
    """The service as tools ask it: they may have a geocoder of their own."""
    own = connections.tool_geocoder if service == "geocoder" else None
    return own or connections.named(service)
