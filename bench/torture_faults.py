"""The faults of `bench/torture.py`: how each strikes a running stage, and how it is mended.

A fault is a function of a cell that runs the stage's command while the fault is there, mends it, and returns how the
command ended. What has to be undone or ended later is left in `cell.closing`.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.loopback_cluster import loopback_cluster
from bench.s3_server import s3_server
from flows.prefect_auth import new_secret, server_environment
from flows.servers import answers, free_port
from schemas.load import load_config
from schemas.settings.services import OFFLINE_URL
from tasks.lake import Lake
from tasks.lake.backup import copy_lake
from tasks.lake.names import KEY_FILE

START_S = 300.0


class PrefectApi:
    """A server that can be stopped and started again, at the same address and with the same database."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        api = f"http://127.0.0.1:{port}/api"
        self.variables = {  # with which commands reach it
            **server_environment(new_secret(), port),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": api,
        }
        self._command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        self._health, self._log = f"{api}/health", folder / "prefect.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, env={**os.environ, **self.variables}, stdout=output, stderr=output
            )
        until = time.monotonic() + START_S
        while not answers(self._health):
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the Prefect server did not start; its log is {self._log}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, as a machine does that goes down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


LIMIT_S = 420.0  # a command that takes longer hangs; one on idle cores takes ten seconds
HANGS = -1000
DISK = "4g"
ROOM = 6_000_000  # of the disk when a command starts; under 4 MB it is refused at once
DAY_S = 86_400
NODE_CPUS = 2  # training asks for two on one node

# What each stage reads first; what plan reads is what it made before.
READ = {
    "plan": "places",
    "street": "places",
    "satellite": "places",
    "curate": "images",
    "review": "labels",
    "synthesize": "labels",
    "difficulty": "labels",
    "train": "trajectories",
    "evaluate": "labels",
}
# Where it shows which pictures a stage has used.
USED = {
    "curate": "judgements",
    "review": "labels",
    "synthesize": "trajectories",
    "difficulty": "attempts",
    "train": "samples",
    "evaluate": "predictions",
}
REMOTE = "http://10.99.0.1"  # a private address that is only reached through a proxy


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Cell:
    """One stage on a lake of its own."""

    stage: str
    folder: Path
    before: Path  # the undisturbed lake before the stage, and after it
    after: Path
    command: list[str]
    step: str  # the stage's longest one
    seconds: float  # how long it took undisturbed
    world: str
    chance: random.Random
    environment: dict[str, str] = field(default_factory=dict)
    lake: str = ""
    own_prefect: bool = False  # a Prefect server of its own, whose database lies in the lake's state
    haste: float = 1.0  # less: strike earlier
    missed: bool = False  # the command had ended before it could be struck
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def copy(self, source: Path | None = None, folder: str = "lake") -> Path:
        """Take a copy of the lake as it was before the stage."""
        place = self.folder / folder
        shutil.copytree(source or self.before, place)
        # The step's lock tells that it works: one that an earlier command has left would tell it too early.
        (Lake(place, read_only=True).state / f"{self.step}.lock").unlink(missing_ok=True)
        self.lake = str(place)
        return place

    def start(self, *more: str, prefix: tuple[str, ...] = (), **environment: str) -> "subprocess.Popen[str]":
        """Start the stage's command; it finishes with `end`."""
        out, err = (self.folder / f"{name}-{time.monotonic_ns()}" for name in ("out", "err"))
        with out.open("w") as standard, err.open("w") as errors:
            process = subprocess.Popen(
                [*prefix, *self.command, "--lake", self.lake, *more],
                env={**self._inherited(), **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=standard,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
        process.said = (out, err)  # type: ignore[attr-defined]
        self.closing.callback(_end_group, process)
        return process

    def _inherited(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not (self.own_prefect and "PREFECT" in name)}

    def end(self, process: "subprocess.Popen[str]") -> Ended:
        """Wait until the command has ended."""
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            _end_group(process)
            code = HANGS
        out, err = (path.read_text(errors="replace") for path in process.said)  # type: ignore[attr-defined]
        return Ended(code, out, err)

    def run(self, *more: str, prefix: tuple[str, ...] = (), **environment: str) -> Ended:
        return self.end(self.start(*more, prefix=prefix, **environment))

    def wait_until_under_way(self, process: "subprocess.Popen[str]") -> None:
        """Until the stage's longest step works, and some of its time has gone."""
        lock = Lake(self.lake, read_only=True).state / f"{self.step}.lock"
        until = time.monotonic() + LIMIT_S
        while process.poll() is None and not lock.exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(self.haste * self.chance.uniform(0.1, 0.7) * self.seconds)
        self.missed = process.poll() is not None


Strike = Callable[[Cell], Ended]


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    name: str
    strike: Strike
    names: str = ""  # what the one line has to say of the fault and of what to do, as a regular expression
    senseless: dict[str, str] = field(default_factory=dict)  # stages it cannot strike, and why
    needs_mounts: bool = False
    but_for: frozenset[str] = frozenset()  # columns that the fault itself changes
    is_told: bool = False  # a command that ends well may have written down what was wrong: it runs again, too
    alone: bool = False  # it changes the environment of this process, which cells beside it would inherit


def _end_group(process: "subprocess.Popen[str]") -> None:
    """End a command that still runs, with all it started; what an ended one has left is a finding."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# signals ----------------------------------------------------------------------------------------------------


def signalled(number: signal.Signals) -> Strike:
    def strike(cell: Cell) -> Ended:
        cell.copy()
        process = cell.start()
        cell.wait_until_under_way(process)
        process.send_signal(number)
        return cell.end(process)

    return strike


def out_of_memory(cell: Cell) -> Ended:
    """The kernel ends the process that holds the most: of the command's workers the largest."""
    cell.copy()
    process = cell.start()
    cell.wait_until_under_way(process)
    until = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
            named = [(one, one.cmdline()[0]) for one in family if one.cmdline()]
            # Not Ray's own agents, which are called alike: their node ends with them.
            workers = [one for one, name in named if name.startswith("ray::") and "Agent" not in name]
            if workers:
                max(workers, key=lambda one: one.memory_info().rss).kill()
                break
        time.sleep(0.05)
    return cell.end(process)


def two_runs(cell: Cell) -> Ended:
    cell.copy()
    first = cell.start()
    second = cell.start()
    ended = [cell.end(process) for process in (first, second)]
    return next((one for one in ended if one.code), ended[0])


# the disk and what lies on it -------------------------------------------------------------------------------


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def _own_disk(cell: Cell) -> Path:
    cell.own_prefect = True
    disk = cell.folder / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK}", "none", str(disk))
    cell.closing.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
    cell.copy(folder="disk/lake")
    return disk


def _used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def full_disk(cell: Cell) -> Ended:
    disk = _own_disk(cell)
    process = cell.start()
    cell.wait_until_under_way(process)
    mount("-o", f"remount,size={_used(disk) + 4096}", str(disk))
    ended = cell.end(process)
    mount("-o", f"remount,size={DISK}", str(disk))
    return ended


def read_only(cell: Cell) -> Ended:
    disk = _own_disk(cell)
    mount("-o", "remount,ro", str(disk))
    ended = cell.run()
    mount("-o", "remount,rw", str(disk))
    return ended


def _with_damage(cell: Cell, file: Path, damage: Callable[[bytes], bytes]) -> Ended:
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    ended = cell.run()
    file.write_bytes(whole)
    return ended


def _newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda file: (file.stat().st_mtime_ns, file.name))


def _readable(cell: Cell) -> Path:
    """The folder of the table that the stage reads first, in a copy of the lake."""
    return cell.copy(cell.after if cell.stage == "plan" else None) / "tables" / READ[cell.stage]


def damaged_parquet(cell: Cell) -> Ended:
    def zeros(whole: bytes) -> bytes:
        half = len(whole) // 2
        return whole[:4] + bytes(half) + whole[4 + half :]

    return _with_damage(cell, _newest(_readable(cell), "*.parquet"), zeros)


def damaged_log(cell: Cell) -> Ended:
    log = _newest(_readable(cell) / "_delta_log", "*.json")
    return _with_damage(cell, log, lambda whole: whole[: len(whole) // 2])


def missing_picture(cell: Cell) -> Ended:
    lake = Lake(cell.copy(), read_only=True)
    used = Lake(cell.after, read_only=True).read(USED[cell.stage], columns=["image_id"])
    row = lake.read("images").join(used, on="image_id", how="semi").sort("image_id").row(0, named=True)
    file = Path(lake.images.path(row["sha256"], row["extension"]))
    aside = file.rename(cell.folder / "picture")
    ended = cell.run()
    if not file.exists():
        aside.rename(file)
    return ended


# surroundings -----------------------------------------------------------------------------------------------


def clock_jump(by_s: int) -> Strike:
    def strike(cell: Cell) -> Ended:
        cell.copy()
        library, clock = cell.folder / "clock_shift.so", cell.folder / "clock"
        source = Path(__file__).with_name("clock_shift.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
        clock.write_text("0")
        process = cell.start(LD_PRELOAD=str(library), CLOCK_SHIFT_FILE=str(clock))
        cell.wait_until_under_way(process)
        clock.write_text(str(by_s))
        return cell.end(process)

    return strike


def odd_path(cell: Cell) -> Ended:
    cell.copy(folder="Läke mit Leerraum")
    return cell.run()


def no_language(cell: Cell) -> Ended:
    cell.copy()
    return cell.run(LANG="C", LC_ALL="C")


def few_files(cell: Cell) -> Ended:
    cell.copy()
    return cell.run(prefix=("bash", "-c", 'ulimit -n 256; exec "$0" "$@"'))


def dead_proxy(cell: Cell) -> Ended:
    """All services lie behind a proxy that is gone; later the offline world itself plays the proxy."""
    cell.copy()
    services = load_config(profile="offline").services
    for service in type(services).model_fields:
        endpoint = getattr(services, service)
        for name in getattr(type(endpoint), "model_fields", ()):
            if str(getattr(endpoint, name)).startswith(OFFLINE_URL):
                address = REMOTE + getattr(endpoint, name).removeprefix(OFFLINE_URL)
                cell.command += ["--set", f"services.{service}.{name}={address}"]
    for service in type(services).model_fields:
        endpoint = getattr(services, service)
        if getattr(endpoint, "key_env", None) and endpoint.public_key:
            cell.environment[endpoint.key_env] = endpoint.public_key
    cell.environment |= {"HTTP_PROXY": cell.world, "http_proxy": cell.world}  # no NO_PROXY: loopback is asked directly
    gone = f"http://127.0.0.1:{free_port()}"
    return cell.run(HTTP_PROXY=gone, http_proxy=gone)


# other machines ---------------------------------------------------------------------------------------------


def lost_node(cell: Cell) -> Ended:
    cell.copy()
    cluster = cell.closing.enter_context(loopback_cluster(2, cell.folder / "cluster.log", cpus=NODE_CPUS))
    cell.command += ["--set", f"spread.address={cluster.address}", "--set", "spread.wait_s=60"]
    process = cell.start()
    cell.wait_until_under_way(process)
    cluster.kill(0)
    return cell.end(process)


def restarted_head(cell: Cell) -> Ended:
    cell.copy()
    with loopback_cluster(1, cell.folder / "cluster.log", cpus=NODE_CPUS) as cluster:
        process = cell.start("--set", f"spread.address={cluster.address}")
        cell.wait_until_under_way(process)
    ended = cell.end(process)
    again = cell.closing.enter_context(loopback_cluster(1, cell.folder / "cluster.log", cpus=NODE_CPUS))
    cell.command += ["--set", f"spread.address={again.address}"]
    return ended


def _restore_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def lost_credentials(cell: Cell) -> Ended:
    # The store's address is in the environment of this process, for the comparison.
    cell.closing.callback(_restore_environment, dict(os.environ))
    denied = cell.folder / "denied"
    os.environ.update(cell.closing.enter_context(s3_server(denied=denied)))
    os.environ["GEOFIX_STATE"] = str(cell.folder / "state")
    cell.lake = "s3://lake/lake"
    source, lake = Lake(cell.before, read_only=True), Lake(cell.lake)
    if source.is_there():
        copy_lake(source, lake)
    else:
        lake.blobs.put(KEY_FILE, source.blobs.get(KEY_FILE))
    process = cell.start()
    cell.wait_until_under_way(process)
    denied.touch()
    ended = cell.end(process)
    denied.unlink()
    return ended


def prefect_restarted(cell: Cell) -> Ended:
    cell.copy()
    server = PrefectApi(cell.folder)
    cell.closing.callback(server.stop)
    server.start()
    cell.environment |= server.variables
    process = cell.start()
    cell.wait_until_under_way(process)
    server.stop()
    server.start()
    return cell.end(process)


LOOKS = frozenset({"snapshots.looks", "snapshots.made_from"})  # by the number of the look
NO_RAY = {"plan": "computed in the command, without Ray"}
NO_SERVICE = dict.fromkeys(("plan", "review"), "asks no service")
NO_PICTURE = dict.fromkeys(("plan", "street", "satellite"), "reads no stored picture")
FAULTS = [
    Fault("SIGKILL", signalled(signal.SIGKILL)),
    Fault("SIGHUP", signalled(signal.SIGHUP), "interrupted: finished work is saved; run the same command again"),
    Fault("full disk", full_disk, "(?i)no space.*free|no room.*free", needs_mounts=True),
    Fault("read-only lake", read_only, "(?i)read-only.*--lake", needs_mounts=True),
    Fault("clock a day ahead", clock_jump(DAY_S)),
    Fault("clock a day back", clock_jump(-DAY_S)),
    Fault("damaged Parquet", damaged_parquet, "damaged.*geofix"),
    Fault("damaged log", damaged_log, "damaged.*geofix"),
    # Review writes a snapshot that fails a check, and looks at its files again.
    Fault("missing picture", missing_picture, "missing|not there", NO_PICTURE, but_for=LOOKS, is_told=True),
    Fault("two runs", two_runs),
    Fault("lost node", lost_node, "", NO_RAY),
    Fault("restarted head", restarted_head, "Ray cluster.*run the same command again", NO_RAY),
    Fault("out of memory", out_of_memory, "", NO_RAY),
    # Models are asked at an address that no price is known for.
    Fault("dead proxy", dead_proxy, "proxy", NO_SERVICE, but_for=frozenset({"cost_usd"})),
    Fault("lost credentials", lost_credentials, "AWS_ACCESS_KEY_ID", alone=True),
    Fault("Prefect restarted", prefect_restarted, "Prefect.*run the same command again"),
    Fault("space and umlaut", odd_path),
    Fault("LANG=C", no_language),
    Fault("256 files", few_files, "open files.*ulimit"),
]
