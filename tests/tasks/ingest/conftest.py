"""Pictures made to order, and tables written beside them."""

import io
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from tasks.ingest.refusal import Refusal
from tasks.ingest.survey import Survey
from tasks.ingest.table import Table

HEADER = ("id", "path", "lat", "lon", "licence", "creator")


class Darkroom:
    """Makes pictures and tables in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def picture(self, seed: int = 1, width: int = 400, height: int = 300) -> Image.Image:
        return Image.frombytes("RGB", (8, 6), random.Random(seed).randbytes(144)).resize((width, height))

    def jpeg(self, seed: int = 1, width: int = 400, height: int = 300, **options: Any) -> bytes:
        out = io.BytesIO()
        self.picture(seed, width, height).save(out, "JPEG", **options)
        return out.getvalue()

    def exif(
        self,
        position: tuple[float, float] | None = None,
        orientation: Any = None,
        size: tuple[int, int] | None = None,
        taken: str | None = None,
        offset: str | None = None,
    ) -> Image.Exif:
        exif = Image.Exif()
        if orientation is not None:
            exif[0x0112] = orientation
        camera = exif.get_ifd(0x8769)
        if size is not None:
            camera[0xA002], camera[0xA003] = size
        if taken is not None:
            camera[0x9003] = taken
        if offset is not None:
            camera[0x9011] = offset
        if position is not None:
            gps = exif.get_ifd(0x8825)
            lat, lon = position
            gps[1], gps[2] = "N" if lat >= 0 else "S", self._sixty(lat)
            gps[3], gps[4] = "E" if lon >= 0 else "W", self._sixty(lon)
        return exif

    def save(self, name: str, data: bytes | None = None, **options: Any) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.jpeg(**options) if data is None else data)
        return path

    def table(self, rows: Sequence[Sequence[Any]], header: Sequence[str] = HEADER, name: str = "photos.csv") -> Path:
        lines = [",".join(map(str, line)) for line in (header, *rows)]
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def plain(self, rows: Sequence[Mapping[str, Any]], name: str = "photos.csv") -> Path:
        """A plain table; what a row does not say is right."""
        full = [
            {"id": f"p{n}", "path": "a.jpg", "lat": 48.5, "lon": 2.5, "licence": "CC0", "creator": "Ana", **row}
            for n, row in enumerate(rows)
        ]
        header = list(dict.fromkeys(key for row in full for key in row))
        return self.table([[row.get(key, "") for key in header] for row in full], header, name)

    @staticmethod
    def _sixty(value: float) -> tuple[IFDRational, IFDRational, IFDRational]:
        degrees, rest = divmod(abs(value) * 3600, 3600)
        minutes, seconds = divmod(rest, 60)
        return IFDRational(int(degrees)), IFDRational(int(minutes)), IFDRational(round(seconds * 1000), 1000)


@pytest.fixture
def darkroom(tmp_path: Path) -> Darkroom:
    folder = tmp_path / "photos"
    folder.mkdir()
    return Darkroom(folder)


Values = tuple[str | None, ...]
Rows = list[tuple[int, Values | Refusal]]


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., Rows]:
    """Every row of a table: its number and the values of some columns, or why it cannot be read."""

    def read(table: Table | Survey, *columns: str) -> Rows:
        if isinstance(table, Survey):
            names, batches = list(columns), table.batches()
        else:
            names = [f"field {n}" for n in range(len(columns))]
            batches = table.batches(dict(zip(names, columns, strict=True)))
        return [
            (row["row"], Refusal(**row["refused"]) if row["refused"] else tuple(row[n] for n in names))
            for batch in batches
            for row in batch.iter_rows(named=True)
        ]

    return read
