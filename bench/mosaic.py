"""A 2000 x 2000 picture where four scenes meet, beside odc-stac doing the reading.

The files are as the provider makes them (deflate, predictor, tiles of 512 pixels) and lie on a host in a process of
its own. Both make the same picture: classes and bands of four scenes, masked, balanced, mosaicked, stretched, as JPEG;
only the reading differs. They take turns, each with addresses it has not seen. The pictures must be equal.

    python -m bench mosaic
"""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.goals import Goal, judge
from schemas.settings.satellite import SatelliteSettings
from schemas.settings.services import StacEndpoint
from tasks.collect.satellite.choice import choose, owners
from tasks.collect.satellite.mosaic import Mosaic, Reading, put_together, read_layers
from tasks.services.sentinel.cog import open_cog
from tasks.services.sentinel.grid import Grid
from tasks.services.sentinel.layers import Layer, clouds
from tasks.services.sentinel.raster import whole
from tasks.services.sentinel.scenes import read_scene
from tasks.services.sentinel.tone import from_bands, jpeg, shown
from tasks.services.stac import Stac
from tasks.services.transport import Connection

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
    process = subprocess.Popen([sys.executable, "-m", "bench.mosaic", "--serve", str(folder), str(port)])
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


SIZE, ROUNDS = 2000, 5
GOAL_BYTES, GOAL_SPEED = 1.2, 1.0
GRID = Grid(EPSG, LEFT + 2_800.0, TOP - 2_800.0, 10.0, SIZE)
SETTINGS = SatelliteSettings(size_px=SIZE)
Picture = tuple[bytes, Mosaic]
reading_s: dict[str, list[float]] = {"geofix": [], "odc-stac": []}


def finish(mosaic: Mosaic) -> Picture:
    return jpeg(shown(mosaic.pixels, SETTINGS.white, SETTINGS.gamma), SETTINGS.jpeg_quality), mosaic


def fresh(url: str, turn: str) -> list[dict[str, Any]]:
    """The items under addresses that no cache knows."""
    found = items(url)
    for item in found:
        for asset in item["assets"].values():
            asset["href"] += f"?turn={turn}"
    return found


def by_geofix(found: list[dict[str, Any]], url: str) -> Picture:
    async def work() -> Picture:
        stac = Stac(Connection("stac", StacEndpoint(base_url=url, sas_url=None)))
        scenes = [read_scene(item, NAMES) for item in found]
        start = time.perf_counter()
        choice = await choose(stac, scenes, GRID, SETTINGS)
        reading = await read_layers(stac, choice.layers, GRID, SETTINGS.assets)
        reading_s["geofix"].append(time.perf_counter() - start)
        await stac.close()
        return finish(put_together(reading, SETTINGS.max_gain))

    return asyncio.run(work())


def by_odc(found: list[dict[str, Any]], pool: Any) -> Picture:
    import odc.stac
    import pystac
    from affine import Affine
    from odc.geo.geobox import GeoBox

    box = GeoBox((SIZE, SIZE), Affine(*GRID.transform), f"EPSG:{EPSG}")
    kinds = {"*": {"data_type": "uint16", "nodata": 0}, "SCL": {"data_type": "uint8", "nodata": 0}}
    start = time.perf_counter()
    loaded = odc.stac.load(
        [pystac.Item.from_dict(item) for item in found],
        bands=list(NAMES),
        geobox=box,
        groupby="id",
        resampling="nearest",
        stac_cfg={"sentinel-2-l2a": {"assets": kinds}},
        pool=pool,
    )
    reading_s["odc-stac"].append(time.perf_counter() - start)
    layers = []
    read = {}
    for number, item in enumerate(found):
        planes = loaded.isel(time=number)
        scene = read_scene(item, NAMES)
        classes = planes["SCL"].values
        layers.append(Layer(scene, classes != 0, ~clouds(classes, GRID.step_m, SETTINGS)))
        read[scene.id] = from_bands([planes[name].values for name in NAMES[:3]], scene.offset)
    layers.sort(key=lambda layer: (-int(layer.clear.sum()), layer.scene.id))
    owner, clear = owners(layers)
    bands = [read[layer.scene.id] for layer in layers]
    everywhere = [whole(GRID)] * len(layers)
    return finish(put_together(Reading(layers, range(len(layers)), everywhere, bands, owner, clear), SETTINGS.max_gain))


def needed_bytes(folder: Path, picture: Mosaic) -> int:
    """The bytes of the tiles that hold what the picture shows of each scene, and of the class maps' over it.

    Counted here by themselves: every pixel's scene and tile, from the scenes' order and frames.
    """
    total = 0
    left, top = round((GRID.left_m - LEFT) / 10), round((TOP - GRID.top_m) / 10)
    rows, columns = np.mgrid[top : top + SIZE, left : left + SIZE]
    free = np.ones((SIZE, SIZE), dtype=bool)
    by_area = sorted(FRAMES, key=lambda frame: (-_inside(frame, rows, columns).sum(), frame.name))
    for frame in by_area:
        inside = _inside(frame, rows, columns)
        for name in NAMES:
            step = 2 if name == "SCL" else 1
            counts = _tile_bytes(folder / f"{frame.name}-{name}.tif")
            mine = inside if name == "SCL" else inside & free
            u, v = (columns[mine] - frame.left) // (512 * step), (rows[mine] - frame.top) // (512 * step)
            total += sum(counts[b][a] for b, a in set(zip(v.tolist(), u.tolist(), strict=True)))
        free &= ~inside
    assert len(picture.parts) == len(FRAMES)
    return total


def _inside(frame: Any, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:

    return (rows >= frame.top) & (rows < frame.top + SCENE) & (columns >= frame.left) & (columns < frame.left + SCENE)


def _tile_bytes(path: Path) -> list[list[int]]:
    data = path.read_bytes()

    async def read(start: int, end: int) -> bytes:
        return data[start:end]

    level = asyncio.run(open_cog(read)).levels[0]
    return [list(level.counts[k : k + level.across]) for k in range(0, len(level.counts), level.across)]


def check(pictures: dict[str, Picture]) -> None:
    """All show the same: undo each scene's gain, and no pixel differs by more than rounding."""
    own = pictures["geofix"][1]
    for data, other in pictures.values():
        assert data[:2] == b"\xff\xd8" and [p.scene.id for p in other.parts] == [p.scene.id for p in own.parts]
        ratio = other.pixels[::7, ::7].astype(float) / own.pixels[::7, ::7]
        assert np.abs(ratio - 1).max() < 0.02, np.abs(ratio - 1).max()


def timed(work: Callable[[], Picture]) -> tuple[float, Picture]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def goals(bytes_ratio: float, speed: float) -> list[Goal]:
    """Bytes read over those needed, and the faster odc-stac's time over ours."""
    return [
        Goal("bytes read / needed", bytes_ratio, at_most=GOAL_BYTES),
        Goal("odc-stac / geofix, time", speed, at_least=GOAL_SPEED),
    ]


def main() -> int:
    import odc.stac

    odc.stac.configure_rio(cloud_defaults=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        with running(folder) as host:
            rivals: dict[str, Callable[[list[dict[str, Any]]], Picture]] = {
                "geofix": lambda found: by_geofix(found, host.url),
                "odc-stac, 8 threads": lambda found: by_odc(found, 8),
                "odc-stac, as it comes": lambda found: by_odc(found, None),
            }
            seconds: dict[str, list[float]] = {rival: [] for rival in rivals}
            sent: dict[str, dict[str, int]] = {}
            pictures: dict[str, Picture] = {}
            for turn in range(ROUNDS + 1):  # the first one warms everything up and is not counted
                for number, (rival, work) in enumerate(rivals.items()):
                    host.count()
                    took, pictures[rival] = timed(lambda w=work, n=number, t=turn: w(fresh(host.url, f"{t}-{n}")))  # type: ignore[misc]
                    sent[rival] = host.count()
                    if turn:
                        seconds[rival].append(took)
            own = statistics.median(seconds["geofix"])
            needed = needed_bytes(folder, pictures["geofix"][1])
            for rival, times in seconds.items():
                middle = statistics.median(times)
                print(
                    f"   {rival:<22} {middle:6.2f} s ({min(times):.2f} to {max(times):.2f})   geofix is "
                    f"{middle / own:4.2f} times as fast   {sent[rival]['bytes'] / 1e6:6.2f} MB in "
                    f"{sent[rival]['requests']:3d} requests, {sent[rival]['bytes'] / needed:4.2f} times what is needed"
                )
            check(pictures)
            best = min(statistics.median(times) for rival, times in seconds.items() if rival != "geofix")
            ratio = sent["geofix"]["bytes"] / needed
            print(f"   needed tiles {needed / 1e6:.2f} MB: {ratio:.3f} times read (goal: at most {GOAL_BYTES})")
            print(f"   {best / own:.2f} times as fast as the faster odc-stac (goal: at least {GOAL_SPEED})")
            reading = {rival: statistics.median(times[2:]) for rival, times in reading_s.items()}
            print(
                f"   reading alone: geofix {reading['geofix']:.2f} s, cloud masks included, odc-stac "
                f"{reading['odc-stac']:.2f} s"
            )
            print("   all three pictures are equal but for the balance, which odc-stac takes from more pixels")
            return judge(goals(ratio, best / own))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
