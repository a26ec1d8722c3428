"""A small Mapillary on a real socket, with pictures put where a test wants them and faults switched on by name."""

import asyncio
import io
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from mapbox_vector_tile import encode
from PIL import Image
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.server import create_app, serving
from infra.offline.services.mapillary import tile_point
from infra.offline.world import World
from schemas.settings.services import MapillaryEndpoint, PanoramaxEndpoint, ServicesSettings, StacEndpoint
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context
from tasks.services import connect
from tasks.services.transport import Connection

TOKEN = "MLY|1000000000000001|0ff11e0ff11e0ff11e0ff11e0ff11e00"


def jpeg(seed: int, width: int, height: int) -> bytes:
    small = Image.frombytes("RGB", (8, 4), random.Random(seed).randbytes(96))
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    out = io.BytesIO()
    small.resize((width, height)).save(out, "JPEG", exif=exif)
    return out.getvalue()


@dataclass
class Shot:
    """A picture the service has."""

    lat: float
    lon: float
    is_pano: bool = True
    width: int = 1600
    height: int = 800
    # truncated, once_truncated, html, gone, 410, outage, expired, forbidden, elsewhere, small
    # of its metadata: deleted, metadata_outage
    fault: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    data: bytes | None = None  # its bytes; none: painted


@dataclass
class Streets:
    """The service: what it holds, how crowded a box may be, and what it was asked."""

    shots: dict[str, Shot] = field(default_factory=dict)
    max_in_box: int = 10_000
    crowd: int = 10_000  # a box with more is answered with this many, and with no word about it
    outage: bool = False
    tile_fault: str | None = None  # missing, outage, forbidden, garbage
    tiles_tell_kinds: bool = True
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""
    signature: int = 1  # only addresses with the newest one are answered

    def put(self, shot_id: str, **shot: Any) -> None:
        self.shots[shot_id] = Shot(**shot)

    def original(self, shot_id: str) -> bytes:
        """The picture as the service keeps it."""
        return jpeg(int(shot_id), self.shots[shot_id].width, self.shots[shot_id].height)

    def client(self, **settings: Any) -> Mapillary:
        endpoint = MapillaryEndpoint(base_url=self.url, max_attempts=2, backoff_s=0, **settings)
        return Mapillary(Connection("mapillary", endpoint, SecretStr(TOKEN)))

    def provider(self, **settings: Any) -> MapillaryStreets:
        return MapillaryStreets(self.client(**settings))

    def row(self, shot_id: str, shot: Shot) -> dict[str, Any]:
        signature = "old" if shot.fault == "expired" and not self.asked[f"image {shot_id}"] else self.signature
        return {
            "id": shot_id,
            "computed_geometry": {"type": "Point", "coordinates": [shot.lon, shot.lat]},
            "is_pano": shot.is_pano,
            "width": shot.width,
            "height": shot.height,
            "captured_at": 1_600_000_000_000,
            "creator": {"username": "walker", "id": "7"},
            "sequence": "seq1",
            "thumb_original_url": f"{self.url}/cdn/{shot_id}.jpg?oh={signature}&oe=FFFFFFFF",
            **shot.extra,
        }

    async def images(self, request: Request) -> Response:
        self.asked["images"] += 1
        if self.outage:
            return self.error(500, 2, "temporarily unavailable")
        west, south, east, north = map(float, request.query_params["bbox"].split(","))
        found = {
            shot_id: shot
            for shot_id, shot in self.shots.items()
            if south <= shot.lat <= north and west <= shot.lon <= east
        }
        if len(found) > self.max_in_box:
            return self.error(500, 1, "Please reduce the amount of data you're asking for, then retry your request")
        if len(found) > self.crowd:
            shown = sorted(found, key=lambda shot_id: random.Random(shot_id).random())[: self.crowd]
            found = {shot_id: found[shot_id] for shot_id in shown}
        wanted = {"true": True, "false": False}.get(request.query_params.get("is_pano", ""))
        rows = [self.row(shot_id, shot) for shot_id, shot in found.items() if wanted in (None, shot.is_pano)]
        return JSONResponse({"data": rows[: int(request.query_params["limit"])]})

    def unknown(self, shot_id: str) -> Response | None:
        if shot_id in self.shots and self.shots[shot_id].fault != "deleted":
            return None
        said = f"Unsupported get request. Object with ID '{shot_id}' does not exist"
        body = {"error": {"message": said, "type": "MLYApiException", "code": 100, "error_subcode": 33}}
        return JSONResponse(body, 400)

    async def many(self, request: Request) -> Response:
        self.asked["many"] += 1
        wanted = request.query_params["ids"].split(",")
        assert len(wanted) <= 50
        for shot_id in wanted:
            if missing := self.unknown(shot_id):
                return missing
        self.asked.update(f"image {shot_id}" for shot_id in wanted)
        return JSONResponse({shot_id: self.row(shot_id, self.shots[shot_id]) for shot_id in wanted})

    async def tile(self, request: Request) -> Response:
        name = tuple(int(request.path_params[axis]) for axis in "zxy")
        self.asked["tiles"] += 1
        self.asked[f"tile {name}"] += 1
        match self.tile_fault:
            case "missing":
                return Response("Not Found", 404)
            case "outage":
                return Response("try later", 503)
            case "forbidden":
                return self.error(403, 200, "no tiles for this application")
            case "garbage":
                return Response(b"\x1a\xff\xff\x01half", media_type="application/x-protobuf")
        z, x, y = name
        features = []
        for shot_id, shot in self.shots.items():
            point = tile_point(shot.lat, shot.lon, z, x, y)
            if all(0 <= part < 4096 for part in point):
                shown = {"id": int(shot_id), "sequence_id": "seq1", "captured_at": 1_600_000_000_000}
                features.append(
                    {
                        "geometry": {"type": "Point", "coordinates": point},
                        "properties": shown | ({"is_pano": shot.is_pano} if self.tiles_tell_kinds else {}),
                    }
                )
        data = encode([{"name": "image", "features": features}], default_options={"y_coord_down": True})
        return Response(data if features else b"", media_type="application/x-protobuf")

    async def image(self, request: Request) -> Response:
        shot_id = request.path_params["shot_id"]
        self.asked[f"image {shot_id}"] += 1
        if shot_id in self.shots and self.shots[shot_id].fault == "metadata_outage":
            return self.error(500, 2, "temporarily unavailable")
        return self.unknown(shot_id) or JSONResponse(self.row(shot_id, self.shots[shot_id]))

    async def picture(self, request: Request) -> Response:
        shot_id = request.path_params["shot_id"]
        shot = self.shots[shot_id]
        self.asked[f"picture {shot_id}"] += 1
        if request.query_params["oh"] != str(self.signature):
            return Response("URL signature expired", 403)
        if shot.fault == "outage":
            return Response("try later", 503)
        if shot.fault == "forbidden":
            return Response("Forbidden", 403)
        if shot.fault == "elsewhere":
            return Response("", 302, headers={"location": "http://portal.example/sign-in?from=cdn"})
        if shot.fault in ("gone", "410"):
            return Response("gone", 404 if shot.fault == "gone" else 410)
        width, height = (400, 200) if shot.fault == "small" else (shot.width, shot.height)
        data = shot.data or jpeg(int(shot_id), width, height)
        if shot.fault == "truncated" or (shot.fault == "once_truncated" and self.asked[f"picture {shot_id}"] == 1):
            data = data[: len(data) // 2]
        if shot.fault == "html":
            data = b"<html>not a picture</html>"
        return Response(data, media_type="image/jpeg")

    def error(self, status: int, code: int, message: str) -> Response:
        return JSONResponse({"error": {"message": message, "type": "MLYApiException", "code": code}}, status)


@pytest.fixture
async def streets() -> AsyncIterator[Streets]:
    """The running service."""
    service = Streets()
    routes = [
        Route("/images", service.images),
        Route("/", service.many),
        Route("/mapillary-tiles/maps/vtp/mly1_public/2/{z}/{x}/{y}", service.tile),
        Route("/cdn/{shot_id}.jpg", service.picture),
        Route("/{shot_id}", service.image),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    service.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield service
    server.should_exit = True
    await serving


@dataclass
class Earth:
    """A small offline world on a real socket, and a lake with places planned where it has streets."""

    url: str
    world: World
    http: httpx.Client

    def context(self, lake: Lake, **mapillary: Any) -> Context:
        services = ServicesSettings(
            mapillary=MapillaryEndpoint(base_url=f"{self.url}/mapillary", backoff_s=0, **mapillary),
            panoramax=PanoramaxEndpoint(base_url=f"{self.url}/panoramax/api", backoff_s=0),
            stac=StacEndpoint(base_url=f"{self.url}/stac/api/stac/v1", backoff_s=0),
        )
        return Context(lake, connect(services, {}))

    def plan(self, lake: Lake, count: int, empty: int = 0) -> None:
        """Places at the world's first streets, and some in the middle of the ocean."""
        spots = [(f"place{k}", self.world.place(k).lat, self.world.place(k).lon) for k in range(count)]
        spots += [(f"ocean{k}", -48.0, -120.0 - k) for k in range(empty)]
        rows = [{"place_id": p, "country": "FR", "lat": y, "lon": x, "split": "train", "cell": p} for p, y, x in spots]
        lake.upsert("places", rows, Commit("plan", 1))

    def faults(self, *rules: dict[str, Any], seed: int = 0) -> None:
        self.http.post("/control/faults", json={"seed": seed, "rules": list(rules)}).raise_for_status()

    def log(self, what: str) -> dict[str, Any]:
        return self.http.get("/control/log").json()[what]

    def forget(self) -> None:
        """Start counting from zero."""
        self.http.delete("/control/log")

    @contextmanager
    def journal(self) -> Iterator[list[tuple[float, str, str, str]]]:
        """What is asked meanwhile, filled in at the end: time, service, request, outcome."""
        asked: list[tuple[float, str, str, str]] = []
        self.http.post("/control/journal", json={}).raise_for_status()
        try:
            yield asked
        finally:
            asked += self.http.get("/control/journal").json()
            self.http.delete("/control/journal")


@pytest.fixture(scope="session")
def _served_earth() -> Iterator[Earth]:
    world = World(seed=7, size=400, pano_width=512)
    with serving(create_app(world, warm=False)) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield Earth(url, world, http)


@pytest.fixture
def earth(_served_earth: Earth) -> Iterator[Earth]:
    """The world as it is at first: nothing deleted, changed or counted."""
    _served_earth.http.delete("/control/faults")
    _served_earth.forget()
    yield _served_earth
    _served_earth.http.delete("/control/faults")


class Killed(BaseException):
    """Ends a run as SIGKILL would: nothing behind it is done."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """A block in which a run is killed where it first calls one of the named functions, and is seen to be."""

    def die(*_: Any) -> None:
        raise Killed

    @contextmanager
    def block(*names: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(name, die)
            with pytest.raises(Killed):
                yield

    return block
