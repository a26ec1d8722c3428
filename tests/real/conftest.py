"""Real servers on loopback, with what the offline world paints: pictures uploaded to Panoramax by its own API, scenes
loaded into pgstac in the shape of Earth Search's items."""

import io
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import shapely.geometry
from PIL import Image

from infra.offline.server import create_app, serving
from infra.offline.services.blobs import ACCOUNT, CONTAINER, Signer
from infra.offline.services.image_host import ImageHost
from infra.offline.world import ImageRecord, World
from infra.real_servers import nominatim, panoramax, pgstac, seaweedfs
from infra.real_servers.environments import missing
from infra.real_servers.postgres import Postgres, postgres
from infra.real_servers.processes import home_of_servers
from schemas.settings.services import PanoramaxEndpoint

FOLDER = Path(os.environ.get("GEOFIX_REAL_SERVERS", ".real-servers")).resolve()
COLLECTION = "sentinel-2-l2a"
SPHERE = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:GPano="http://ns.google.com/photos/1.0/panorama/"'
    b' GPano:ProjectionType="equirectangular"%s/></rdf:RDF></x:xmpmeta>'
)
READY_S = 60.0


def tagged(data: bytes, record: ImageRecord, crop: dict[str, int] | None = None, focal_mm: int | None = None) -> bytes:
    """A JPEG with the tags that a camera writes: position, direction, time, and for a sphere what of it there is."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = record.make, record.model
    own, gps = exif.get_ifd(0x8769), exif.get_ifd(0x8825)
    own[0x9003] = datetime.fromtimestamp(record.captured_at_ms / 1000, UTC).strftime("%Y:%m:%d %H:%M:%S")
    own[0x9011] = "+00:00"
    if focal_mm:
        own[0xA405], own[0x920A] = focal_mm, 4.2
    gps[1], gps[2] = "N" if record.lat >= 0 else "S", _degrees(record.lat)
    gps[3], gps[4] = "E" if record.lon >= 0 else "W", _degrees(record.lon)
    gps[16], gps[17] = "T", round(record.compass_deg, 2)
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).save(out, "JPEG", quality=90, exif=exif)
    made = out.getvalue()
    if not record.is_pano:
        return made
    words = "".join(f' GPano:{name}="{value}"' for name, value in (crop or {}).items()).encode()
    body = b"http://ns.adobe.com/xap/1.0/\0" + SPHERE % words
    return made[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + made[2:]


def _degrees(value: float) -> tuple[float, float, float]:
    whole, rest = divmod(abs(value) * 3600, 3600)
    minutes, seconds = divmod(rest, 60)
    return whole, minutes, round(seconds, 6)


@dataclass
class Instance:
    """The server, and what was put on it."""

    server: panoramax.PanoramaxServer
    world: World
    http: httpx.Client
    records: dict[str, ImageRecord] = field(default_factory=dict)  # by picture id
    sequences: dict[str, str] = field(default_factory=dict)  # likewise

    @property
    def endpoint(self) -> PanoramaxEndpoint:
        return PanoramaxEndpoint(base_url=self.server.url, backoff_s=0.1)

    def painted(self, record: ImageRecord) -> bytes:
        return ImageHost(self.world).jpeg(record, "original")

    def upload(self, records: list[ImageRecord], **tags: Any) -> list[str]:
        """The ids of pictures that were uploaded as one sequence, once the server shows them."""
        files = [(record, tagged(self.painted(record), record, **tags)) for record in records]
        return self.upload_files(files)

    def upload_files(self, files: list[tuple[ImageRecord, bytes]]) -> list[str]:
        sequence = self.http.post("/collections", json={"title": "painted"}).raise_for_status().json()["id"]
        names: list[str] = []
        for position, (record, data) in enumerate(files, 1):
            answer = self.http.post(
                f"/collections/{sequence}/items",
                data={"position": str(position)},
                files={"picture": (f"{position}.jpg", data, "image/jpeg")},
            ).raise_for_status()
            names.append(answer.json()["id"])
            self.records[names[-1]], self.sequences[names[-1]] = record, sequence
        self._await(names)
        return names

    def delete(self, name: str) -> None:
        self._change("DELETE", name)

    def hide(self, name: str) -> None:
        self._change("PATCH", name, json={"visibility": "owner-only"})

    def replace_bytes(self, name: str, data: bytes) -> None:
        """As where a picture is blurred anew: other bytes under the same id."""
        self.server.file_of(name).write_bytes(data)

    def _change(self, method: str, name: str, **options: Any) -> None:
        address = f"/collections/{self.sequences[name]}/items/{name}"
        token = {"Authorization": f"Bearer {self.server.token}"}
        self.http.request(method, address, headers=token, **options).raise_for_status()

    def _await(self, names: list[str]) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = self.http.get("/search", params={"ids": ",".join(names), "limit": len(names)}).json()["features"]
            if len(found) == len(names):
                return
            time.sleep(0.3)
        raise AssertionError(f"{len(names)} pictures were not ready within {READY_S:.0f} s")


def installed(name: str) -> None:
    """Skips the test where the server is not installed."""
    needed = missing(FOLDER, name)
    if needed is not None:
        pytest.skip(f"{name}: {needed} is not installed")


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    with home_of_servers() as folder:
        yield folder


@pytest.fixture(scope="session")
def database(home: Path) -> Iterator[Postgres]:
    """One PostgreSQL for all servers."""
    installed("panoramax")
    with postgres(home / "postgres") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def world() -> World:
    return World(seed=7, size=400, pano_width=2048)


@pytest.fixture(scope="session")
def offline_url(world: World) -> Iterator[str]:
    """The offline world's server: the stand-ins, and the files of scenes."""
    with serving(create_app(world, warm=False)) as url:
        yield url


@pytest.fixture(scope="session")
def instance(home: Path, database: Postgres, world: World) -> Iterator[Instance]:
    with (
        panoramax.serving(FOLDER, home, database) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        yield Instance(server, world, http)


@pytest.fixture(scope="session")
def nominatim_url(home: Path, database: Postgres) -> Iterator[str]:
    installed("nominatim")
    with nominatim.serving(FOLDER, home, database) as url:
        yield url


@pytest.fixture(scope="session")
def store(home: Path) -> Iterator[dict[str, str]]:
    """The environment of a client of SeaweedFS, whose one bucket is `lake`."""
    installed("seaweedfs")
    with seaweedfs.serving(FOLDER, home) as environment:
        names = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
        keys = {name: environment[variable] for name, variable in names.items()}
        client = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1", **keys)
        client.create_bucket(Bucket="lake")
        yield environment


@dataclass
class Archive:
    """pgstac, and the stand-in whose painted scenes it lists."""

    server: pgstac.PgstacServer
    stand_in: str
    world: World

    def stand_in_items(self, bbox: list[float], start: str, end: str) -> list[dict[str, Any]]:
        question = {"collections": [COLLECTION], "bbox": bbox, "datetime": f"{start}/{end}", "limit": 1000}
        answer = httpx.post(f"{self.stand_in}/search", json=question, timeout=120).raise_for_status()
        items: list[dict[str, Any]] = answer.json()["features"]
        return items

    def load(self, items: list[dict[str, Any]]) -> None:
        for item in items:
            item.setdefault("bbox", list(shapely.geometry.shape(item["geometry"]).bounds))  # pgstac wants one
        self.server.load("items", {item["id"]: item for item in items}.values())

    def load_like_earth_search(self, points: list[tuple[float, float]], start: str, end: str) -> None:
        """The scenes of points (lat, lon) between two times."""
        boxes = [[lon - 0.02, lat - 0.02, lon + 0.02, lat + 0.02] for lat, lon in points]
        self.load([self._like_earth_search(item) for box in boxes for item in self.stand_in_items(box, start, end)])

    def _like_earth_search(self, item: dict[str, Any]) -> dict[str, Any]:
        """Its names of properties and assets; the files are had without a key, here by an address signed already."""
        properties = item["properties"]
        tile = properties.pop("s2:mgrs_tile")
        properties |= {"mgrs:utm_zone": int(tile[:2]), "mgrs:latitude_band": tile[2], "mgrs:grid_square": tile[3:]}
        # What is painted has the offset of its processing baseline, as the scenes have which Earth Search left alone.
        properties |= {"grid:code": f"MGRS-{tile}", "earthsearch:boa_offset_applied": False}
        _, token = Signer(self.world.seed).token(ACCOUNT, CONTAINER, time.time())
        assets = {ASSET_NAMES[name]: asset for name, asset in item["assets"].items()}
        for asset in assets.values():
            asset["href"] += f"?{token}"
        day = properties["datetime"][:10].replace("-", "")
        name = f"{item['id'][:3]}_{tile}_{day}_0_L2A"
        return {**item, "id": name, "collection": COLLECTION, "assets": assets}


ASSET_NAMES = {"B02": "blue", "B03": "green", "B04": "red", "visual": "visual", "SCL": "scl"}


@pytest.fixture(scope="session")
def archive(home: Path, database: Postgres, offline_url: str, world: World) -> Iterator[Archive]:
    installed("pgstac")
    stand_in = f"{offline_url}/stac/api/stac/v1"
    with pgstac.serving(FOLDER, home, database) as server:
        server.load("collections", [httpx.get(f"{stand_in}/collections/{COLLECTION}").raise_for_status().json()])
        yield Archive(server, stand_in, world)


def moved(record: ImageRecord, lat: float, lon: float) -> ImageRecord:
    """The same picture at another place."""
    return replace(record, lat=lat, lon=lon)


@pytest.fixture
def move() -> Any:
    return moved


@pytest.fixture
def tag() -> Any:
    return tagged
