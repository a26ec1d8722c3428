"""A canary for every secret the settings know, a whole run through a deployment's worker, and a search for them.

    python -m bench canary [--keep]

The secrets are found by walking the settings: every `…_env` field names a variable. Those of object stores, of the
model hub and Prefect's own secret come with them. The offline world wants the canary as its Mapillary token, the lake
lies on an S3-compatible server, metrics, traces and the webhook are on, and some answers are errors. `geofix up` starts
a server and a worker, which runs the pipeline to its end; then the snapshot is exported and the lake backed up.
Searched are the lake, logs, reports, exports and backups, Prefect's database, metrics, traces and what the webhook was
told, and while it runs Ray's folders and all command lines: none may hold a canary, in any spelling. A planted leak of
every spelling in every kind of file has to be found, or nothing is proven.
"""

import argparse
import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import re
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from bench.goals import Goal, judge
from bench.s3_server import s3_server
from bench.torture import SETTINGS
from flows.deployment import key_variables
from flows.prefect_auth import secret_file
from flows.servers import free_port
from infra.offline.faults import Faults
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.load import load_config
from tasks.lake import Lake
from tasks.lake.backup import FOLDERS
from tasks.lake.blobs import Blobs
from tasks.lake.location import VARIABLES

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


# Known to libraries rather than to the settings.
OTHERS = ("AWS_SESSION_TOKEN", "HF_TOKEN")
NO_SECRETS = ("AWS_ENDPOINT_URL", "AWS_REGION", "AZURE_STORAGE_ACCOUNT_NAME")  # named by VARIABLES
WEBHOOK, PREFECT = "GEOFIX_WEBHOOK", "PREFECT_API_AUTH_STRING"
ENDS = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
LIMIT_S = 2400.0
FAULTS = {"seed": 5, "rules": [{"service": "*", "kind": "status", "status": 500, "rate": 0.03}]}


def secret_variables(settings: Any) -> set[str]:
    """The environment variables that these settings name: every field whose name ends in `_env`, however deep."""
    if isinstance(settings, BaseModel):
        fields = {name: getattr(settings, name) for name in type(settings).model_fields}
        named = {value for name, value in fields.items() if name.endswith("_env") and value}
        return named.union(*(secret_variables(value) for value in fields.values()))
    if isinstance(settings, dict):
        return set().union(*map(secret_variables, settings.values()))
    if isinstance(settings, list | tuple):
        return set().union(*map(secret_variables, settings))
    return set()


def new_canaries() -> dict[str, str]:
    """Variable -> the core of its secret (as in Mapillary's tokens), for all that the two profiles could read."""
    configs = [load_config(profile=profile) for profile in ("production", "offline")]
    found = set().union(*map(secret_variables, configs))
    missed = {name for config in configs for name in key_variables(config)} - found
    if missed:
        raise SystemExit(f"the walk over the settings does not find {', '.join(sorted(missed))}")
    stores = {name for names in VARIABLES.values() for name in names} - set(NO_SECRETS)
    return {name: secrets.token_hex(16) for name in sorted({*found, *stores, *OTHERS, PREFECT})}


class Listener:
    """An HTTP server that keeps what it is told: the webhook and the collector of traces."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.bodies = 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.bodies += 1
                kind = "trace" if handler.path.startswith("/v1/traces") else "webhook"
                (folder / f"{kind}-{time.monotonic_ns()}").write_bytes(body)
                handler.send_response(200)
                handler.end_headers()

            def log_message(handler, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


class Watch(threading.Thread):
    """Searches while the run lasts: Ray's folders, command lines, and the metrics page."""

    def __init__(self, search: Search, folder: Path, metrics_url: str) -> None:
        super().__init__(daemon=True)
        self._search, self._folder, self._url = search, folder, metrics_url
        self._ended = threading.Event()
        self.pages = 0  # of metrics
        self.ray_files = 0

    def run(self) -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self._ended.wait(2.0):
            before = self._search.places
            self._search.folder(self._folder, leave_out=handed_over(self._folder))
            self.ray_files = max(self.ray_files, self._search.places - before)
            self._search.command_lines()
            with contextlib.suppress(OSError), direct.open(self._url, timeout=5) as page:
                self._search.look("metrics", page.read())
                self.pages += 1

    def end(self) -> None:
        self._ended.set()
        self.join(60)


def handed_over(folder: Path) -> list[Path]:
    """The files by which Prefect's worker hands its environment to a run's process, where only their owner reads them.

    They go with the run: what is searched afterwards leaves nothing out.
    """
    found = []
    for path in folder.rglob("prefect-workspace-attempt-*/*"):
        with contextlib.suppress(OSError):
            if not (path.stat().st_mode | path.parent.stat().st_mode) & 0o077:
                found.append(path)
    return found


def geofix(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of geofix; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"geofix {words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done


def run_deployment(api: str, secret: str) -> str:
    """Run the whole pipeline as its deployment; the state it ended in."""
    with httpx.Client(base_url=api, auth=tuple(secret.split(":", 1)), trust_env=False, timeout=120) as client:  # type: ignore[arg-type]
        deployment = client.get("/deployments/name/pipeline/whole").raise_for_status().json()["id"]
        scheduled = {"parameters": {}, "state": {"type": "SCHEDULED"}}
        made = client.post(f"/deployments/{deployment}/create_flow_run", json=scheduled).raise_for_status()
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = client.get(f"/flow_runs/{made.json()['id']}")
            if found.is_success and (state := found.json()["state"])["type"] in ENDS:
                return f"{state['name']} ({state['message'] or 'nothing to say'})"
            time.sleep(1)
    return "no end within the time limit"


def settings_of(world: str, metrics_port: int) -> list[str]:
    """Settings with which every service is asked with the key of its variable; one model has an endpoint of its own."""
    offline = load_config(profile="offline").services
    own = [name for name in type(offline).model_fields if getattr(getattr(offline, name), "public_key", None)]
    settings: dict[str, Any] = {
        **SETTINGS,
        **{f"services.{name}.public_key": "null" for name in own},
        "offline.port": world.rpartition(":")[2],
        "observe.metrics_port": metrics_port,
        "evaluate.policies": "[answerer-base, answerer-large]",
        "services.client.max_attempts": 4,
        "flows.retries": 3,
        "flows.retry_delay_s": 0.5,
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def search_all(folder: Path, canaries: dict[str, str], world_faults: Faults) -> tuple[Search, dict[str, int], str]:
    """Run everything and search it; the search, how much there was to search, and how the run ended."""
    search, told = Search(canaries), Listener(folder / "told")
    short = folder / "t"  # Ray's sockets lie in it
    short.mkdir()
    metrics = free_port()
    with contextlib.ExitStack() as stack:
        token = f"MLY|1|{canaries['MAPILLARY_TOKEN']}"  # with the next: the world wants keys of the services' shapes
        app = create_app(
            World(size=load_config(profile="offline").offline.size), world_faults, tokens=frozenset((token,))
        )
        world = stack.enter_context(serving(app))
        store = stack.enter_context(s3_server())
        environment = {
            **os.environ,
            **canaries,
            **store,
            **{name: canaries[name] for name in store.keys() & canaries.keys()},
            "MAPILLARY_TOKEN": token,
            "OPENAI_API_KEY": f"sk-{canaries['OPENAI_API_KEY']}",
            "TAVILY_API_KEY": f"tvly-{canaries['TAVILY_API_KEY']}",
            WEBHOOK: f"{told.url}/{canaries[WEBHOOK]}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": told.url,
            "GEOFIX_STATE": str(folder / "state"),
            "TMPDIR": str(short),
        }
        for name in ("PREFECT_API_URL", PREFECT):
            environment.pop(name, None)
        os.environ.update({name: environment[name] for name in (*store, "GEOFIX_STATE")})
        lake = Lake("s3://lake/canary")
        lake.state.mkdir(parents=True, exist_ok=True)
        secret_file(lake).write_text(f"geofix:{canaries[PREFECT]}\n")
        options = ["--lake", lake.uri, "--profile", "offline"]
        stack.callback(geofix, environment, "down", "--lake", lake.uri)
        up = geofix(environment, "up", *options, *settings_of(world, metrics), "--json")
        watch = Watch(search, short, f"http://127.0.0.1:{metrics}/metrics")
        watch.start()
        try:
            ended = run_deployment(json.loads(up.stdout)["api"], f"geofix:{canaries[PREFECT]}")
        finally:
            watch.end()
        said = [up.stdout + up.stderr]
        snapshot = lake.read("snapshots")["snapshot_id"][0] if lake.version("snapshots") >= 0 else None
        if snapshot:
            for form in ("hf", "geoparquet"):
                out = str(folder / f"export-{form}")
                done = geofix(environment, "export", snapshot, "--as", form, "--out", out, "--lake", lake.uri)
                said.append(done.stdout + done.stderr)
        done = geofix(environment, "backup", str(folder / "backup"), "--lake", lake.uri)
        search.look("what commands said", "".join([*said, done.stdout, done.stderr]).encode())
        stored = _search_store(search, lake.blobs)
    search.folder(folder, leave_out=[secret_file(lake)])
    figures = {
        "objects in the lake": stored,
        "files while it ran": watch.ray_files,
        "pages of metrics": watch.pages,
        "traces and webhooks": told.bodies,
        "requests to services": sum(world_faults.requests.values()),
        "errors of services": sum(world_faults.struck.values()),
    }
    return search, figures, ended


def _search_store(search: Search, blobs: Blobs) -> int:
    """Search every object of a lake, with its name; returns how many there are."""
    count = 0
    for blob in (blob for folder in FOLDERS for blob in blobs.list(folder)):
        search.look(f"lake: {blob.key}", blobs.get(blob.key))
        search.look("names of objects", blob.key.encode())
        count += 1
    return count


def planted_leaks(core: str) -> dict[str, bytes]:
    """A leak in every spelling, by the name of the file that holds it."""
    key = f"MLY|1|{core}"
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    half = len(key) // 2
    return {
        "plain": f"token={key}\n".encode(),
        "url": urllib.parse.quote(f"https://graph.example.org/images?access_token={key}", safe="").encode(),
        "url-twice": urllib.parse.quote("".join(f"%{ord(letter):02X}" for letter in key)).encode(),
        "json-escapes": json.dumps(json.dumps({"key": key})).encode() + escaped.encode(),
        "json-split": json.dumps({"lines": [key[:half] + "\\", "\n" + key[half:]]}).encode(),
        "wrapped": f"{key[:half]}\n    {key[half:]}".encode(),
        **{f"base64-{n}": base64.b64encode(b"x" * n + key.encode() + b"yz") for n in range(3)},
        "base64-lines": base64.encodebytes(b"Authorization: " + key.encode() * 3),
        "gzip": gzip.compress(gzip.compress(key.encode())),
    }


def missed_leaks(folder: Path) -> list[str]:
    """Which planted leaks the search does not find: there may be none."""
    core = secrets.token_hex(16)
    folder.mkdir()
    for name, data in planted_leaks(core).items():
        (folder / name).write_bytes(data)
    pl.DataFrame({"text": ["nothing", f"key {core}"]}).write_parquet(folder / "table.parquet")
    with contextlib.closing(sqlite3.connect(folder / "database.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE kept (body BLOB)")
        database.execute("INSERT INTO kept VALUES (?)", (gzip.compress(core.encode()),))
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / f"{core}.txt").write_text("in its name")
    search = Search({"control": core})
    search.folder(folder)
    with subprocess.Popen([sys.executable, "-c", "input()", core], stdin=subprocess.PIPE) as shown:
        search.command_lines()
        shown.kill()
    found = {place for _, _, place in search.hits}
    wanted = {*(str(path) for path in folder.iterdir()), f"command line of process {shown.pid}"}
    return sorted(wanted - found)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave what was searched where it is")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="gfc"))
    missed = missed_leaks(folder / "control")
    shutil.rmtree(folder / "control")
    canaries = new_canaries()
    print(f"   {len(canaries)} secrets: {', '.join(canaries)}", flush=True)
    search, figures, ended = search_all(folder, canaries, Faults.from_json(json.dumps(FAULTS)))
    print(f"   the run: {ended}; {', '.join(f'{count:,} {what}' for what, count in figures.items())}")
    print(f"   {search.places:,} files, objects and command lines searched")
    for name, way, place in sorted(search.hits):
        print(f"   FOUND {name} ({way}) in {place.replace(str(folder), '…')}")
    for place in missed:
        print(f"   NOT FOUND although planted: {place}")
    if given.keep or search.hits:
        print(f"   searched: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return judge(
        [
            Goal("secrets found", len(search.hits), at_most=0),
            Goal("planted leaks not found", len(missed), at_most=0),
            Goal("the run came to its end", float(ended.startswith(("Completed", "FailedRows"))), at_least=1),
            *(Goal(what, count, at_least=1) for what, count in figures.items()),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
