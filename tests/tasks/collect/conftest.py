"""A small Mapillary on a real socket, with pictures put where a test wants them and faults switched on by name."""

import asyncio
import io
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from PIL import Image
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from schemas.settings.services import MapillaryEndpoint
from tasks.services import Mapillary
from tasks.services.http import Connection

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
    fault: str | None = None  # truncated, once_truncated, html, gone, outage, expired, small
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Streets:
    """The service: what it holds, how crowded a box may be, and what it was asked."""

    shots: dict[str, Shot] = field(default_factory=dict)
    max_in_box: int = 10_000
    outage: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""
    signature: int = 1  # only addresses with the newest one are answered

    def put(self, shot_id: str, **shot: Any) -> None:
        self.shots[shot_id] = Shot(**shot)

    def client(self, **settings: Any) -> Mapillary:
        endpoint = MapillaryEndpoint(base_url=self.url, max_attempts=2, backoff_s=0, **settings)
        return Mapillary(Connection("mapillary", endpoint, SecretStr(TOKEN)))

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
        wanted = {"true": True, "false": False}.get(request.query_params.get("is_pano", ""))
        rows = [self.row(shot_id, shot) for shot_id, shot in found.items() if wanted in (None, shot.is_pano)]
        return JSONResponse({"data": rows[: int(request.query_params["limit"])]})

    async def image(self, request: Request) -> Response:
        shot_id = request.path_params["shot_id"]
        self.asked[f"image {shot_id}"] += 1
        return JSONResponse(self.row(shot_id, self.shots[shot_id]))

    async def picture(self, request: Request) -> Response:
        shot_id = request.path_params["shot_id"]
        shot = self.shots[shot_id]
        self.asked[f"picture {shot_id}"] += 1
        if request.query_params["oh"] != str(self.signature):
            return Response("URL signature expired", 403)
        if shot.fault == "outage":
            return Response("try later", 503)
        if shot.fault == "gone":
            return Response("gone", 404)
        width, height = (400, 200) if shot.fault == "small" else (shot.width, shot.height)
        data = jpeg(int(shot_id), width, height)
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
