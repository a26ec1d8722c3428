"""A Panoramax server: geovisio of PyPI over PostgreSQL and PostGIS of Debian.

    python -m infra.real_servers.panoramax FOLDER install    # once, into an environment of its own
    python -m infra.real_servers.panoramax FOLDER serve      # with an empty database, until it is interrupted

Debian's packages are installed by you: `apt-get install postgresql postgresql-15-postgis-3`.
"""

import argparse
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION = "2.15.1"
LICENCE = "CC-BY-SA-4.0"
START_S = 90.0
# geovisio names a fork of OpenDAL that has wheels for x86-64 alone; OpenDAL itself serves local files as well.
_FORK, _UPSTREAM = "opendal_panoramax_fork", "opendal==0.47.*"


@dataclass(frozen=True)
class PanoramaxServer:
    """A running server."""

    url: str  # of the API
    token: str  # of the account that pictures are uploaded by
    pictures: Path  # where it stores them

    def file_of(self, picture_id: str) -> Path:
        """The stored original of a picture."""
        digits = picture_id[:8]
        pairs = (digits[at : at + 2] for at in range(0, 8, 2))
        return self.pictures / "permanent" / Path(*pairs) / f"{picture_id[9:]}.jpg"


def missing(folder: Path) -> str | None:
    """What has to be installed before it can serve; None: nothing."""
    if _postgres() is None:
        return "PostgreSQL with PostGIS (apt-get install postgresql postgresql-15-postgis-3)"
    if not (folder / "bin" / "flask").exists():
        return f"geovisio (python -m infra.real_servers.panoramax {folder} install)"
    return None


def install(folder: Path) -> None:
    """geovisio in an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"

    def pip(*words: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "-q", *words], check=True)

    pip("--no-deps", f"geovisio=={VERSION}")
    read = "import importlib.metadata as m; print(*m.requires('geovisio'), sep='\\n')"
    named = subprocess.run([python, "-c", read], check=True, capture_output=True, text=True).stdout.splitlines()
    plain = [line for line in named if "extra ==" not in line]
    is_there = os.uname().machine == "x86_64"
    pip(*(line if is_there or not line.startswith(_FORK) else _UPSTREAM for line in plain))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[PanoramaxServer]:
    """The server on a free port, with an empty database; both end with the block, and leave nothing."""
    home = Path(tempfile.mkdtemp(prefix="geofix-panoramax-"))
    home.chmod(0o755)
    try:
        with _database(home / "postgres") as database:
            yield from _serve(folder, home, database)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _serve(folder: Path, home: Path, database: str) -> Iterator[PanoramaxServer]:
    pictures, port = home / "pictures", _free_port()
    pictures.mkdir()
    env = {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")},
        **{"DB_URL": database, "FS_URL": str(pictures), "FLASK_APP": "geovisio", "FLASK_SECRET_KEY": "only for tests"},
        **{"INFRA_NB_PROXIES": "0", "PICTURE_PROCESS_THREADS_LIMIT": "1", "API_PICTURES_LICENSE_SPDX_ID": LICENCE},
        "API_PICTURES_LICENSE_URL": "https://creativecommons.org/licenses/by-sa/4.0/",
    }

    def flask(*words: str) -> str:
        command = [str(folder / "bin" / "flask"), *words]
        return subprocess.run(command, check=True, env=env, capture_output=True, text=True).stdout

    flask("db", "upgrade")
    token = flask("default-account-tokens", "get").strip().splitlines()[-1]
    with (home / "log").open("wb") as log:
        command = [str(folder / "bin" / "flask"), "run", "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/api"
    try:
        _await(f"{url}/configuration", server, home / "log")
        yield PanoramaxServer(url, token, pictures)
    finally:
        server.terminate()
        server.wait(timeout=30)


@contextlib.contextmanager
def _database(folder: Path) -> Iterator[str]:
    """The address of a database of its own with PostGIS."""
    programs = _postgres()
    assert programs is not None, "`missing` says so"
    folder.mkdir()
    user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", _free_port()

    def run(program: str, *words: str | Path) -> None:
        subprocess.run(
            [programs / program, *words], check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, env=_env(user)
        )

    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    run("initdb", "-D", data, "-A", "trust", "-U", "postgres")
    run("pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
    try:
        there = ("-q", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres")
        run("psql", *there, "-c", "create database panoramax")
        run("psql", *there, "-d", "panoramax", "-c", "create extension postgis")
        yield f"postgres://postgres@127.0.0.1:{port}/panoramax"
    finally:
        run("pg_ctl", "-D", data, "-m", "fast", "-w", "stop")


def _env(user: str | None) -> dict[str, str]:
    home = pwd.getpwnam(user).pw_dir if user else os.environ.get("HOME", "/")
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "LC_ALL": "C.UTF-8"}


def _postgres() -> Path | None:
    """The folder of the newest PostgreSQL's programs that has PostGIS."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    with_postgis = [
        path.parent
        for path in found
        if Path("/usr/share/postgresql", path.parts[-3], "extension/postgis.control").exists()
    ]
    return with_postgis[-1] if with_postgis else None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Panoramax did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["install", "serve"])
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "install":
        install(folder)
        return
    if (needed := missing(folder)) is not None:
        sys.exit(f"missing: {needed}")
    with serving(folder) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"{server.url} token {server.token}", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
