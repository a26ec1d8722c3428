"""Four scenes that meet in a corner, as files of a provider's make, on a file host of their own process."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EPSG, LEFT, TOP = 32633, 399_960, 5_799_960  # the north-western corner of the ground that is painted
PAINTED, SCENE, OVERLAP = 2_560, 1_770, 980  # pixels; neighbouring scenes share 9.8 km, as the real ones do
NAMES = ("B04", "B03", "B02", "SCL")
LIGHT = (1.0, 1.06, 0.95, 1.03)  # each scene has its own
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Frame:
    """A scene's place."""

    name: str
    left: int  # pixels from the painted ground's corner
    top: int

    @property
    def left_m(self) -> int:
        return LEFT + self.left * 10

    @property
    def top_m(self) -> int:
        return TOP - self.top * 10


FRAMES = [Frame(f"scene{k}", x, y) for k, (y, x) in enumerate((y, x) for y in (0, 790) for x in (0, 790))]


def write(folder: Path) -> None:
    """Write the files: deflate, predictor, tiles of 512 pixels, overviews. The ground is the offline world's."""
    import rasterio
    from rasterio.transform import from_origin

    ground = _ground()
    for frame, light in zip(FRAMES, LIGHT, strict=True):
        part = ground[frame.top : frame.top + SCENE, frame.left : frame.left + SCENE]
        stored = np.clip(np.rint(part * light), 1, 20_000).astype(np.uint16) + np.uint16(1000)
        bands = {name: stored[..., k] for k, name in enumerate(NAMES[:3])}
        bands["SCL"] = np.full((SCENE // 2, SCENE // 2), 4, np.uint8)
        for name, pixels in bands.items():
            step = 20 if name == "SCL" else 10
            with rasterio.open(
                folder / f"{frame.name}-{name}.tif", "w", driver="COG", dtype=pixels.dtype, count=1,
                height=pixels.shape[0], width=pixels.shape[1], crs=f"EPSG:{EPSG}", nodata=0, compress="DEFLATE",
                predictor="YES", blocksize=512, transform=from_origin(frame.left_m, frame.top_m, step, step),
            ) as file:  # fmt: skip
                file.write(pixels, 1)


def _ground() -> np.ndarray:
    from infra.offline.scenes.ground import paint_ground
    from infra.offline.scenes.tiles import tile_named
    from infra.offline.scenes.window import Window

    tile = tile_named("33UVT")
    assert tile is not None
    out = np.empty((PAINTED, PAINTED, 3), np.float32)
    for row in range(0, PAINTED, 512):
        for column in range(0, PAINTED, 512):
            window = Window(33, False, LEFT + column * 10, TOP - row * 10, 10, 512, 512)
            painted = paint_ground(7, tile, window, 190, (55.0, 160.0))
            out[row : row + 512, column : column + 512] = painted.colour
    return out * 10_000


def items(url: str) -> list[dict[str, Any]]:
    """The scenes as STAC items."""
    from pyproj import Transformer

    to_degrees = Transformer.from_crs(EPSG, 4326, always_xy=True).transform
    found = []
    for frame in FRAMES:
        side = SCENE * 10
        x, y = frame.left_m, frame.top_m
        ring = [to_degrees(*corner) for corner in ((x, y), (x, y - side), (x + side, y - side), (x + side, y), (x, y))]
        assets = {}
        for name in NAMES:
            step = 20 if name == "SCL" else 10
            assets[name] = {
                "href": f"{url}/{frame.name}-{name}.tif",
                "type": "image/tiff; application=geotiff; profile=cloud-optimized",
                "proj:shape": [side // step, side // step],
                "proj:transform": [float(step), 0.0, float(x), 0.0, -float(step), float(y)],
            }
        lon, lat = zip(*ring, strict=True)
        found.append(
            {
                "type": "Feature",
                "stac_version": "1.0.0",
                "stac_extensions": ["https://stac-extensions.github.io/projection/v1.0.0/schema.json"],
                "id": frame.name,
                "collection": "sentinel-2-l2a",
                "geometry": {"type": "Polygon", "coordinates": [[list(corner) for corner in ring]]},
                "bbox": [min(lon), min(lat), max(lon), max(lat)],
                "properties": {
                    "datetime": f"2023-07-0{len(found) + 1}T10:00:00Z",
                    "eo:cloud_cover": 0.0,
                    "proj:epsg": EPSG,
                    "s2:processing_baseline": "05.09",
                },
                "assets": assets,
                "links": [],
            }
        )
    return found


def serve(folder: str, port: int) -> None:
    """The file host; `/count` says how many bytes it sent since it was last asked."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    sent = {"bytes": 0, "requests": 0}

    async def file(request: Request) -> Response:
        data = files.get(request.path_params["name"])
        if data is None:
            return Response(status_code=404)
        headers = {"accept-ranges": "bytes"}
        if request.method == "HEAD":
            return Response(headers={**headers, "content-length": str(len(data))}, media_type="image/tiff")
        start, _, last = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(start) : int(last) + 1 if last else len(data)]
        sent["bytes"] += len(part)
        sent["requests"] += 1
        headers["content-range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
        return Response(part, 206, headers, "image/tiff")

    async def count(request: Request) -> Response:
        told = dict(sent)
        sent.update(bytes=0, requests=0)
        return JSONResponse(told)

    app = Starlette(routes=[Route("/count", count), Route("/{name}", file, methods=["GET", "HEAD"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


class Host:
    """The running file host."""

    def __init__(self, url: str) -> None:
        self.url = url

    def count(self) -> dict[str, int]:
        with _direct.open(f"{self.url}/count", timeout=30) as answer:
            found: dict[str, int] = json.load(answer)
            return found


@contextmanager
def running(folder: Path) -> Iterator[Host]:
    """The file host, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "bench.scene_archive", str(folder), str(port)])
    host = Host(f"http://127.0.0.1:{port}")
    try:
        for _ in range(600):
            try:
                host.count()
                break
            except OSError:
                time.sleep(0.1)
        else:
            sys.exit("the file host did not start")
        yield host
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
