"""A Panoramax server: geovisio over PostGIS. Pictures come by its upload API."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.real_servers.environments import program
from infra.real_servers.postgres import Postgres
from infra.real_servers.processes import environment, free_ports, running

LICENCE = "CC-BY-SA-4.0"


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


@contextlib.contextmanager
def serving(folder: Path, home: Path, database: Postgres) -> Iterator[PanoramaxServer]:
    """The server on a free port, without pictures."""
    pictures, (port,), flask = home / "pictures", free_ports(1), program(folder, "panoramax")
    pictures.mkdir()
    database.sql("create database panoramax")
    database.sql("create extension postgis", "panoramax")
    env = environment(
        DB_URL=database.address("panoramax"),
        FS_URL=str(pictures),
        FLASK_APP="geovisio",
        FLASK_SECRET_KEY="only for tests",
        INFRA_NB_PROXIES="0",
        PICTURE_PROCESS_THREADS_LIMIT="1",
        API_PICTURES_LICENSE_SPDX_ID=LICENCE,
        API_PICTURES_LICENSE_URL="https://creativecommons.org/licenses/by-sa/4.0/",
    )
    subprocess.run([flask, "db", "upgrade"], check=True, env=env, capture_output=True)
    tokens = subprocess.run(
        [flask, "default-account-tokens", "get"], check=True, env=env, capture_output=True, text=True
    )
    url = f"http://127.0.0.1:{port}/api"
    command: list[str | Path] = [flask, "run", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, f"{url}/configuration", home / "panoramax.log", env):
        yield PanoramaxServer(url, tokens.stdout.strip().splitlines()[-1], pictures)
