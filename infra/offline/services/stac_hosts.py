"""The scene archive under its real names.

The `planetary-computer` SDK signs only addresses of `*.blob.core.windows.net`, so it finds nothing to sign in answers
that point at loopback. A client that uses this server as its HTTP proxy meets the real names instead: it asks
`http://planetarycomputer.microsoft.com/api/stac/v1`, is sent on to `http://<account>.blob.core.windows.net/...`, and
needs no change. `PC_SDK_SAS_URL=http://planetarycomputer.microsoft.com/api/sas/v1/token` and, for GDAL,
`GDAL_HTTP_PROXY` complete it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

Application = Callable[[Any, Any, Any], Awaitable[None]]
API_HOST = "planetarycomputer.microsoft.com"
BLOB_DOMAIN = ".blob.core.windows.net"
CAME_BY_REAL_HOST = "came_by_real_host"


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
