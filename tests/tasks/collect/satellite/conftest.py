"""A small scene archive on a real socket: a STAC API, a signing service and a file host, with faults by name."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import rasterio
import uvicorn
from rasterio.io import MemoryFile
from rasterio.transform import from_origin
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.scenes.projection import to_geographic
from schemas.settings.services import StacEndpoint
from tasks.services.stac import Stac
from tasks.services.transport import Connection

NAMES = ("B02", "B03", "B04", "SCL", "visual")


def cog(pixels: np.ndarray, epsg: int, left_m: float, top_m: float, step_m: float, **options: Any) -> bytes:
    """A file as production has it: deflate, predictor 2, tiles, overviews."""
    bands = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    profile = {"compress": "DEFLATE", "predictor": "YES", "blocksize": 128, "overviews": "AUTO", "nodata": 0, **options}
    with MemoryFile() as memory:
        with memory.open(
            driver="COG",
            dtype=pixels.dtype,
            count=bands.shape[0],
            height=bands.shape[1],
            width=bands.shape[2],
            crs=rasterio.CRS.from_epsg(epsg),
            transform=from_origin(left_m, top_m, step_m, step_m),
            **profile,
        ) as file:
            file.write(bands)
        return memory.read()


@dataclass
class Ground:
    """A scene's frame: a square of pixels of 10 m on a zone's grid."""

    epsg: int
    left_m: float
    top_m: float
    size: int = 512

    @property
    def zone(self) -> tuple[int, bool]:
        return self.epsg % 100, self.epsg // 100 == 327

    def degrees(self, step_m: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
        """lat, lon of every pixel's middle, by formulas of another hand than the ones that are tested."""
        count = round(self.size * 10 / step_m)
        middle = (np.arange(count) + 0.5) * step_m
        x, y = np.meshgrid(self.left_m + middle, self.top_m - middle)
        return to_geographic(x, y, *self.zone)

    def outline(self) -> list[list[float]]:
        side = self.size * 10
        x = self.left_m + np.array([0, 0, side, side, 0])
        y = self.top_m - np.array([0, side, side, 0, 0])
        lat, lon = to_geographic(x, y, *self.zone)
        return [[float(a), float(b)] for a, b in zip(lon, lat, strict=True)]


@dataclass
class Archive:
    """What the archive holds, what it was asked, and how it misbehaves."""

    items: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    page: int = 100
    asked: Counter[str] = field(default_factory=Counter)
    searches: list[dict[str, Any]] = field(default_factory=list)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    faults: dict[str, Callable[[int], Response | None]] = field(default_factory=dict)  # of search, token, or a path
    signature: int = 1
    lifetime_s: float = 2700.0

    def put(
        self,
        name: str,
        ground: Ground,
        red: np.ndarray | float = 0.1,
        green: np.ndarray | float = 0.1,
        blue: np.ndarray | float = 0.1,
        classes: np.ndarray | int = 4,
        *,
        cloud: float = 0.0,
        when: datetime = datetime(2023, 7, 1, 10, tzinfo=UTC),
        baseline: str = "05.09",
        properties: dict[str, Any] | None = None,
        geometry: Any = None,
        hrefs: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        """A scene; colours are reflectance, 0 where nothing was seen; classes are at 20 m."""
        size = ground.size
        added = 1000 if baseline >= "04.00" else 0
        colours = [np.broadcast_to(np.asarray(c, dtype=float), (size, size)) for c in (red, green, blue)]
        stored = [np.where(c == 0, 0, np.rint(c * 10_000) + added).astype(np.uint16) for c in colours]
        small = np.broadcast_to(np.asarray(classes, dtype=np.uint8), (size // 2, size // 2))
        shown = np.stack([np.clip(np.rint(c / 0.3558 * 255), c > 0, 255) for c in colours], axis=2).astype(np.uint8)
        frame = (ground.epsg, ground.left_m, ground.top_m)
        pictures = dict(zip(("B04", "B03", "B02"), stored, strict=True), SCL=small, visual=shown)
        for asset in NAMES:
            self.files[f"{name}/{asset}.tif"] = cog(pictures[asset], *frame, 20 if asset == "SCL" else 10, **options)
        self.items.append(
            {
                "type": "Feature",
                "id": name,
                "geometry": geometry or {"type": "Polygon", "coordinates": [ground.outline()]},
                "properties": {
                    "datetime": when.isoformat().replace("+00:00", "Z"),
                    "eo:cloud_cover": cloud,
                    "s2:processing_baseline": baseline,
                    **({"proj:epsg": ground.epsg} if len(self.items) % 2 else {"proj:code": f"EPSG:{ground.epsg}"}),
                    **(properties or {}),
                },
                "assets": {
                    asset: {"href": (hrefs or {}).get(asset, f"{{url}}/blob/acc/box/{name}/{asset}.tif")}
                    for asset in NAMES
                },
            }
        )

    def client(self, **settings: Any) -> Stac:
        endpoint = StacEndpoint(
            base_url=f"{self.url}/stac",
            asset_url=f"{self.url}/blob/{{account}}/{{container}}/",
            **{"sas_url": f"{self.url}/sas", "max_attempts": 3, "backoff_s": 0, **settings},
        )
        return Stac(Connection("stac", endpoint))

    def _fault(self, name: str) -> Response | None:
        count = self.asked[name]
        self.asked[name] += 1
        return self.faults[name](count) if name in self.faults else None

    async def search(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.searches.append(body)
        if (fault := self._fault("search")) is not None:
            return fault
        start, end = (datetime.fromisoformat(part) for part in body["datetime"].split("/"))
        found = [
            item
            for item in self.items
            if start <= datetime.fromisoformat(item["properties"]["datetime"]) <= end
            and item["properties"]["eo:cloud_cover"] <= body["query"]["eo:cloud_cover"]["lte"]
        ]
        first = int(body.get("token", "next:0").split(":")[1])
        links = [{"rel": "self", "href": "https://elsewhere.example/"}]
        if first + self.page < len(found):
            following = {**body, "token": f"next:{first + self.page}"}
            links.append({"rel": "next", "method": "POST", "href": "https://elsewhere.example/", "body": following})
        text = json.dumps({"type": "FeatureCollection", "features": found[first : first + self.page], "links": links})
        return Response(text.replace("{url}", self.url), media_type="application/geo+json")

    async def token(self, request: Request) -> Response:
        if (fault := self._fault("token")) is not None:
            return fault
        end = datetime.now(UTC) + timedelta(seconds=self.lifetime_s)
        return JSONResponse({"msft:expiry": f"{end:%Y-%m-%dT%H:%M:%SZ}", "token": f"se=x&sig=SECRET{self.signature}"})

    async def blob(self, request: Request) -> Response:
        path = request.path_params["path"]
        if (fault := self._fault(path)) is not None:
            return fault
        if request.query_params.get("sig") is None:
            return Response("<Error><Code>PublicAccessNotPermitted</Code></Error>", 409)
        if request.query_params["sig"] != f"SECRET{self.signature}":
            return Response(f"<Error>AuthenticationFailed {request.query_params['sig']}</Error>", 403)
        data = self.files.get(path)
        if data is None:
            return Response("<Error><Code>BlobNotFound</Code></Error>", 404)
        start, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        first, end = int(start), min(int(last) + 1, len(data))
        if first >= len(data):
            return Response("<Error><Code>InvalidRange</Code></Error>", 416)
        self.ranges.append((path, first, end))
        headers = {"content-range": f"bytes {first}-{end - 1}/{len(data)}"}
        return Response(data[first:end], 206, headers, "image/tiff")


def once(status: int, text: str = "", **headers: str) -> Callable[[int], Response | None]:
    """A fault that passes."""
    return lambda count: PlainTextResponse(text, status, headers) if count == 0 else None


def always(status: int, text: str = "") -> Callable[[int], Response | None]:
    return lambda count: PlainTextResponse(text, status)


@pytest.fixture
async def archive() -> AsyncIterator[Archive]:
    """The running archive."""
    service = Archive()
    routes = [
        Route("/stac/search", service.search, methods=["POST"]),
        Route("/stac/collections/sentinel-2-l2a", lambda request: JSONResponse({"type": "Collection"})),
        Route("/sas/token/{account}/{container}", service.token),
        Route("/blob/{account}/{container}/{path:path}", service.blob),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    for _ in itertools.count():
        if server.started:
            break
        await asyncio.sleep(0.01)
    service.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield service
    server.should_exit = True
    await serving


@pytest.fixture
def ground() -> type[Ground]:
    return Ground


@pytest.fixture
def passing() -> Callable[..., Callable[[int], Response | None]]:
    return once


@pytest.fixture
def lasting() -> Callable[..., Callable[[int], Response | None]]:
    return always
