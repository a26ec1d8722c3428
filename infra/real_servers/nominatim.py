"""A Nominatim server over a small map (`small_map.py`), imported by its own program."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from infra.real_servers.environments import program
from infra.real_servers.postgres import Postgres
from infra.real_servers.processes import environment, free_ports, running
from infra.real_servers.small_map import osm_xml


@contextlib.contextmanager
def serving(folder: Path, home: Path, database: Postgres) -> Iterator[str]:
    """The server's address, once the map is imported."""
    project, (port,), nominatim = home / "nominatim", free_ports(1), program(folder, "nominatim")
    project.mkdir()
    (project / "map.osm").write_text(osm_xml(), encoding="utf-8")
    database.sql("create role nominatim_web login")
    place = f"dbname=nominatim;host=127.0.0.1;port={database.port};user=postgres"
    env = environment(
        **database.variables,
        NOMINATIM_DATABASE_DSN=f"pgsql:{place}",
        NOMINATIM_DATABASE_WEBUSER="nominatim_web",
        NOMINATIM_IMPORT_STYLE="full",
    )
    command: list[str | Path] = [nominatim, "import", "--osm-file", "map.osm", "--threads", "2"]
    with (home / "import.log").open("wb") as log:
        subprocess.run(command, check=True, env=env, cwd=project, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    command = [nominatim, "serve", "--server", f"127.0.0.1:{port}"]
    with running(command, f"{url}/status", home / "nominatim.log", env, cwd=project):
        yield url
