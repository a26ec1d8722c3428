"""The scene archive under its real names, and loaded only when someone asks for it.

The `planetary-computer` SDK signs only addresses of `*.blob.core.windows.net`, so it finds nothing to sign in answers
that point at loopback. A client that uses this server as its HTTP proxy meets the real names instead: it asks
`http://planetarycomputer.microsoft.com/api/stac/v1`, is sent on to `http://<account>.blob.core.windows.net/...`, and
needs no change. `PC_SDK_SAS_URL=http://planetarycomputer.microsoft.com/api/sas/v1/token` and, for GDAL,
`GDAL_HTTP_PROXY` complete it.
"""

import importlib
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from starlette.routing import BaseRoute, Mount

from infra.offline.world import World

Application = Callable[[Any, Any, Any], Awaitable[None]]
API_HOST = "planetarycomputer.microsoft.com"
BLOB_DOMAIN = ".blob.core.windows.net"
CAME_BY_REAL_HOST = "came_by_real_host"
_PARTS = {
    "/stac": ("infra.offline.services.stac", "stac_application"),
    "/sas": ("infra.offline.services.blobs", "sas_application"),
    "/blob": ("infra.offline.services.blobs", "blob_application"),
}


class RealHosts:
    """Requests to the archive's real names, led to its paths here; all others pass unchanged."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            host = host.partition(":")[0].lower()
            path = scope["path"]
            if path.startswith("http://"):  # the whole address, as sent to a proxy
                path = "/" + path[7:].partition("/")[2]
                scope = {**scope, "path": path, "raw_path": path.encode()}
            prefix = ""
            if host == API_HOST:
                prefix = "/sas" if path.startswith("/api/sas/") else "/stac"
            elif host.endswith(BLOB_DOMAIN):
                prefix = f"/blob/{host.removesuffix(BLOB_DOMAIN)}"
            if prefix:
                scope = {**scope, "path": prefix + path, "raw_path": (prefix + path).encode(), CAME_BY_REAL_HOST: True}
        await self.app(scope, receive, send)


class _Later:
    """An application made when first asked: the painter's libraries take a second to load, and few need them."""

    def __init__(self, world: World, module: str, name: str) -> None:
        self._world, self._module, self._name = world, module, name
        self._made: Application | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._made is None:
            made = await anyio.to_thread.run_sync(self._make)
            self._made = self._made or made
        await self._made(scope, receive, send)

    def _make(self) -> Application:
        application: Application = getattr(importlib.import_module(self._module), self._name)(self._world)
        return application


def archive_routes(world: World) -> list[BaseRoute]:
    """The STAC API, the signing endpoint and the asset host, to be mounted."""
    return [Mount(path, _Later(world, module, name)) for path, (module, name) in _PARTS.items()]
