"""A PostgreSQL of its own on loopback, of Debian's package: empty at first, deleted with its block."""

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.real_servers.processes import environment, free_ports


@dataclass(frozen=True)
class Postgres:
    """A running cluster; its user `postgres` needs no password."""

    port: int
    programs: Path

    @property
    def variables(self) -> dict[str, str]:
        """What libpq reads."""
        return {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres", "PGPASSWORD": "none"}

    def sql(self, statement: str, database: str = "postgres") -> None:
        command: list[str | Path] = [
            self.programs / "psql",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            database,
            "-c",
            statement,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(**self.variables))

    def address(self, database: str) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """The cluster, in a new folder that other users may enter."""
    programs = postgres_programs()
    assert programs is not None, "`missing` says so"
    folder.mkdir()
    user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
    if user is not None:
        shutil.chown(folder, user)
    data, (port,) = folder / "data", free_ports(1)
    home = pwd.getpwnam(user).pw_dir if user else os.environ.get("HOME", "/")

    def run(program: str, *words: str | Path) -> None:
        env = environment(HOME=home, LC_ALL="C.UTF-8")
        subprocess.run(
            [programs / program, *words], check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, env=env
        )

    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c full_page_writes=off"
    run("initdb", "-D", data, "-A", "trust", "-U", "postgres")
    run("pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
    try:
        yield Postgres(port, programs)
    finally:
        run("pg_ctl", "-D", data, "-m", "fast", "-w", "stop")


def postgres_programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs that has PostGIS."""
    versions = sorted(int(path.name) for path in Path("/usr/lib/postgresql").glob("*") if path.name.isdigit())
    extension = "/usr/share/postgresql/{}/extension/postgis.control"
    with_postgis = [version for version in versions if Path(extension.format(version)).exists()]
    return Path(f"/usr/lib/postgresql/{with_postgis[-1]}/bin") if with_postgis else None
