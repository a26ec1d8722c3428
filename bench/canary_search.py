"""Find secrets in whatever a run left behind: as they are, encoded, split by escapes or white space, packed.

A secret is searched by its core, a run of letters and digits that every encoding either keeps or changes as a whole.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

DEEPEST = 4  # packed in packed in packed
_ESCAPE = re.compile(rb"\\+u00([0-9a-fA-F]{2})|\\+x([0-9a-fA-F]{2})")
_BREAK = re.compile(rb"\\+[nrt]")
_PERCENT = re.compile(rb"%(?:25)*([0-9a-fA-F]{2})")


_HALF_WRITTEN = (
    *(OSError, EOFError, ValueError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, tarfile.TarError, sqlite3.Error),
)


def spellings(core: str) -> dict[str, bytes]:
    """The ways in which a secret's core may be written, by name."""
    found = {"plain": core.encode()}
    for shift in range(3):  # where it begins in a group of three bytes; groups that its neighbours change are left out
        whole = base64.b64encode(bytes(shift) + core.encode())
        found[f"base64+{shift}"] = whole[4 if shift else 0 : -4]
    return found


class Search:
    """Secrets by name, and where they were found."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._spellings = [(name, way, text) for name, core in secrets.items() for way, text in spellings(core).items()]
        self.hits: set[tuple[str, str, str]] = set()  # secret, spelling, place
        self.places = 0

    def look(self, place: str, data: bytes, depth: int = 0) -> None:
        """Search some bytes, and what is packed in them."""
        self.places += depth == 0
        for view in _views(data):
            for name, way, text in self._spellings:
                if text in view:
                    self.hits.add((name, way, place))
        if depth < DEEPEST:
            for inner in _unpacked(data):
                self.look(place, inner, depth + 1)

    def folder(self, folder: Path, leave_out: Iterable[Path] = ()) -> None:
        """Search all files of a folder, their names included; what goes meanwhile is left."""
        kept_out = set(leave_out)
        for path in folder.rglob("*"):
            if path in kept_out or path.is_symlink() or not path.is_file():
                continue
            try:
                data = path.read_bytes()
            except OSError:
                continue
            self.look(str(path), data)
            self.look(str(path), str(path).encode(), DEEPEST)

    def command_lines(self) -> None:
        """Search what every user of the machine sees of our processes."""
        for process in psutil.process_iter(["cmdline"]):
            self.look(f"command line of process {process.pid}", "\0".join(process.info["cmdline"] or []).encode())


def _views(data: bytes) -> Iterator[bytes]:
    """The bytes as they are, and with escapes, percent signs, quotes, line ends and spaces taken away."""
    yield data
    unescaped = data
    if b"\\" in data:
        unescaped = _BREAK.sub(b"", _ESCAPE.sub(lambda found: bytes([int(found[1] or found[2], 16)]), data))
    if b"%" in data:
        unescaped = _PERCENT.sub(lambda found: bytes([int(found[1], 16)]), unescaped)
    joined = unescaped.translate(None, b"\\\"' \t\r\n\0,+")
    if joined != data:
        yield joined


def _unpacked(data: bytes) -> Iterator[bytes]:
    """What is inside, by the first bytes of the formats in which our tools pack."""
    try:
        if data.startswith(b"\x1f\x8b"):
            yield gzip.decompress(data)
        elif data.startswith(b"BZh"):
            yield bz2.decompress(data)
        elif data.startswith(b"\xfd7zXZ"):
            yield lzma.decompress(data)
        elif data[:1] == b"\x78" and data[1:2] in b"\x01\x5e\x9c\xda":
            yield zlib.decompress(data)
        elif data.startswith(b"\x28\xb5\x2f\xfd"):
            yield pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
        elif data.startswith(b"PAR1"):
            for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches():
                yield json.dumps(batch.to_pylist(), default=str).encode()
        elif data.startswith(b"SQLite format 3"):
            yield from _sqlite(data)
        elif data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                yield from (packed.read(name) for name in packed.namelist())
        elif data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data)) as packed:
                yield from (file.read() for one in packed if (file := packed.extractfile(one)) is not None)
    except (
        OSError,
        EOFError,
        ValueError,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
        tarfile.TarError,
        sqlite3.Error,
    ):
        return  # half written: its bytes were searched


def _sqlite(data: bytes) -> Iterator[bytes]:
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(data[:18] + b"\x01\x01" + data[20:])  # not in WAL mode, which needs files beside it
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            quoted = table.replace('"', '""')
            for row in database.execute(f'SELECT * FROM "{quoted}"'):
                yield from (_as_bytes(value) for value in row if isinstance(value, str | bytes))
    finally:
        database.close()


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
