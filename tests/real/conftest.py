"""A real Panoramax on loopback, and pictures of the offline world uploaded to it by its own API."""

import io
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from infra.offline.services.image_host import ImageHost
from infra.offline.world import ImageRecord, World
from infra.real_servers import panoramax as real
from schemas.settings.services import PanoramaxEndpoint

FOLDER = Path(os.environ.get("GEOFIX_REAL_SERVERS", ".real-servers")).resolve() / "panoramax"
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

    server: real.PanoramaxServer
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


@pytest.fixture(scope="session")
def instance() -> Iterator[Instance]:
    """The server; the tests are skipped where it is not installed."""
    needed = real.missing(FOLDER)
    if needed is not None:
        pytest.skip(f"{needed} is not installed")
    with real.serving(FOLDER) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield Instance(server, World(seed=7, size=400, pano_width=2048), http)


def moved(record: ImageRecord, lat: float, lon: float) -> ImageRecord:
    """The same picture at another place."""
    return replace(record, lat=lat, lon=lon)


@pytest.fixture
def move() -> Any:
    return moved


@pytest.fixture
def tag() -> Any:
    return tagged
