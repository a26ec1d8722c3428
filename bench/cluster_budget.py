"""One budget for a cluster: workers on several Ray nodes ask one service, and the service counts.

    python -m bench.cluster_budget [--nodes 3] [--per-minute 600] [--seconds 90]

Nodes, workers and service are processes of this machine, and speak over loopback. It fails unless, by the journal of
the offline world,
- no minute holds more requests than `requests_per_minute`, and at least nine tenths of the limit are used;
- that also holds while the actor that counts is killed again and again, and while a worker's node is;
- a day holds no more than `requests_per_day`, over a restart of the command too; the rest fails with the reason;
- when the actor is gone for good, the stage ends with one line and nothing more is asked.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import ray
from pydantic import Field
from ray import cloudpickle

from bench.loopback_cluster import LoopbackCluster, loopback_cluster
from flows.servers import Server, free_port
from schemas.errors import GeofixError
from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.lake import Lake
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.on_ray import budget_actor
from tasks.runtime.on_ray.start import stop_ray
from tasks.runtime.runner import Context, Inputs, Kept, Resources, Row, Stage, WorkerSetup, run
from tasks.services import connect

# The nodes import geofix, not its benchmarks.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MEET_WITHIN_S = 120.0
USED = 0.9  # of the limit, at least, while nothing goes wrong


class Asking(Settings):
    """How often the stage asks."""

    requests: int = Field(12, json_schema_extra=OPERATIONAL)  # more of them make none another one
    # A folder in which all nodes meet before the first of them asks: else a quick one may have done it all.
    meeting: str = Field("", json_schema_extra=OPERATIONAL)
    nodes: int = Field(1, json_schema_extra=OPERATIONAL)


def items(inputs: Inputs, settings: Asking) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"n{k:05d}" for k in range(settings.requests)]})


def open_client(settings: Asking, setup: WorkerSetup) -> Mapillary:
    if settings.meeting:
        place = Path(settings.meeting)
        (place / ray.get_runtime_context().get_node_id()).touch()
        until_s = time.monotonic() + MEET_WITHIN_S
        while len(list(place.iterdir())) < settings.nodes:
            if time.monotonic() > until_s:
                raise RuntimeError(f"fewer than {settings.nodes} nodes got work")
            time.sleep(0.05)
    return Mapillary(setup.connections.street_view["mapillary"])


async def ask(item: Row, mapillary: Mapillary) -> Kept:
    """One search in the open sea."""
    west = -30 + int(item["id"][1:]) * 1e-4
    await mapillary.images_in_box(west, 40.0, west + 1e-4, 40.0001, ("id",))
    node = ray.get_runtime_context().get_node_id()
    place = {"place_id": item["id"], "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train", "admin1": node}
    return Kept({"places": [place]})


ASK = Stage(
    "ask",
    (),
    ("places",),
    items,
    ask,
    open_client,
    resources=Resources(concurrency=16, chunk=4),
    services=("mapillary",),
)


@dataclass
class Trial:
    """A lake, a cluster and a service that keeps a journal."""

    folder: Path
    url: str
    cluster: LoopbackCluster
    nodes: int
    wrong: list[str] = field(default_factory=list)

    def run(self, name: str, requests: int, progress: Callable[[Tick], None] = lambda _: None, **budget: Any) -> Any:
        """Run the stage within a budget on a lake of this name; its result, or the error that ended it.

        The first run of a lake begins on all nodes at once.
        """
        meeting = self.folder / f"{name}-nodes"
        meeting.mkdir(exist_ok=True)
        services = {"mapillary": {"base_url": f"{self.url}/mapillary", "backoff_s": 0.2, **budget}}
        context = Context(
            Lake(self.folder / name),
            connect(ServicesSettings.model_validate(services), {}),
            SpreadSettings(address=self.cluster.address),
            progress,
        )
        try:
            return run(ASK, Asking(requests=requests, meeting=str(meeting), nodes=self.nodes), context)
        except GeofixError as error:
            return error

    def nodes_at(self, name: str) -> set[str]:
        """The nodes that did the work."""
        return set(Lake(self.folder / name).read("places")["admin1"].to_list())

    def asked(self) -> list[float]:
        """The moments of all requests since the last time this was called, by the service's own clock."""
        found = sorted(entry[0] for entry in self._control("GET"))
        self._control("DELETE")
        self._control("POST")
        return found

    def _control(self, method: str) -> Any:
        body = b"{}" if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/control/journal", body, headers, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)

    def expect(self, holds: bool, what: str) -> None:
        print(f"    {'ok   ' if holds else 'WRONG'} {what}", flush=True)
        if not holds:
            self.wrong.append(what)


def most_in_a_window(moments: list[float], seconds: float) -> int:
    """The most requests in any window of this many seconds."""
    most, first = 0, 0
    for last, moment in enumerate(moments):
        while moment - moments[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def kill_counting_actor(cluster: LoopbackCluster) -> int | None:
    """SIGKILL the process of this cluster in which budgets are counted; its id, or None where there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            counts = (process / "cmdline").read_bytes().startswith(b"ray::BudgetFile")
            if counts and _descends(int(process.name), cluster.process.pid):
                os.kill(int(process.name), signal.SIGKILL)
                return int(process.name)
        except OSError:
            continue  # it ended while we looked
    return None


def counting_actor() -> Any:
    """The actor of the last run."""
    return list(budget_actor._actors.values())[-1]._actor


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == ancestor


@contextmanager
def killing_every(seconds: float, cluster: LoopbackCluster) -> Iterator[list[int]]:
    """Kill the actor that counts again and again; the ids of the processes killed."""
    over, killed = threading.Event(), list[int]()

    def kill() -> None:
        while not over.wait(seconds):
            pid = kill_counting_actor(cluster)
            if pid is not None:
                killed.append(pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def check_pace(trial: Trial, per_minute: int, seconds: int) -> None:
    """Undisturbed, then with the actor killed every few seconds, then with a node killed."""
    requests = per_minute * seconds // 60
    print(f"  {requests} requests at {per_minute} a minute", flush=True)
    result = trial.run("pace", requests, requests_per_minute=per_minute)
    moments = trial.asked()
    most = most_in_a_window(moments, 60.0)
    trial.expect(_kept(result) == requests == len(moments), f"{_kept(result)} kept, {len(moments)} asked")
    trial.expect(len(trial.nodes_at("pace")) == trial.nodes, f"by workers on {len(trial.nodes_at('pace'))} nodes")
    trial.expect(most <= per_minute, f"at most {most} in any minute, {most / per_minute:.1%} of the limit")
    used = (len(moments) - 1) / (moments[-1] - moments[0]) * 60 / per_minute
    trial.expect(used >= USED, f"{used:.1%} of the limit from first to last")

    print("  the actor that counts is killed every 5 s", flush=True)
    with killing_every(5.0, trial.cluster) as killed:
        result = trial.run("killed", requests, requests_per_minute=per_minute)
    most = most_in_a_window(moments := trial.asked(), 60.0)
    trial.expect(len(killed) >= 3, f"{len(killed)} kills")
    trial.expect(_kept(result) == requests == len(moments), f"{_kept(result)} kept, {len(moments)} asked")
    trial.expect(most <= per_minute, f"at most {most} in any minute, {most / per_minute:.1%} of the limit")

    print("  a node with a worker is killed", flush=True)
    once = iter([0])

    def kill_at_a_third(tick: Tick) -> None:
        if tick.done >= requests / 3 and (node := next(once, None)) is not None:
            trial.cluster.kill(node)
            trial.nodes -= 1

    result = trial.run("node", requests, kill_at_a_third, requests_per_minute=per_minute)
    most = most_in_a_window(moments := trial.asked(), 60.0)
    again = len(moments) - requests
    trial.expect(next(once, None) is None, "the node was killed in the middle")
    trial.expect(_kept(result) == requests, f"{_kept(result)} kept, {again} asked again for what died with it")
    trial.expect(most <= per_minute, f"at most {most} in any minute, {most / per_minute:.1%} of the limit")


def check_day(trial: Trial, per_day: int) -> None:
    """More is wanted than a day allows, over a restart and with the actor killed."""
    print(f"  {2 * per_day} requests, {per_day} a day", flush=True)
    with killing_every(1.0, trial.cluster) as killed:
        first = trial.run("day", per_day // 2, requests_per_day=per_day)
    stop_ray()  # as another command would, the next run joins anew, and its actor reads what the last one wrote
    rest = trial.run("day", 2 * per_day, requests_per_day=per_day)
    asked = len(trial.asked())
    lost = per_day - asked
    trial.expect(_kept(first) == per_day // 2, f"{_kept(first)} kept before the restart, {len(killed)} kills")
    trial.expect(asked <= per_day, f"{asked} asked in all")
    # An actor that died after it had counted and before it had answered: those permits are lost.
    trial.expect(lost <= 64 * len(killed), f"{lost} permits lost by kills")
    trial.expect(_kept(rest) == asked - per_day // 2, f"{_kept(rest)} kept after the restart")
    trial.expect(isinstance(rest, StageResult) and rest.failed == 2 * per_day - asked, "the others failed, counted")
    reasons = Lake(trial.folder / "day").read("failures")["message"].to_list()
    trial.expect(all("services.mapillary.requests_per_day" in reason for reason in reasons), "with the reason")


def check_gone(trial: Trial, requests: int, per_minute: int) -> None:
    """The actor is ended for good while work is out."""
    print("  the actor that counts is gone for good", flush=True)
    once = iter([0])

    def end(tick: Tick) -> None:
        if tick.done >= requests / 4 and next(once, None) is not None:
            ray.kill(counting_actor(), no_restart=True)

    ended = trial.run("gone", requests, end, requests_per_minute=per_minute)
    trial.expect(isinstance(ended, GeofixError) and "does not answer" in str(ended), f"the stage ended: {ended}")
    asked = len(trial.asked())
    trial.expect(asked < requests, f"{asked} of {requests} were asked, then no more")
    rest = trial.run("gone", requests, requests_per_minute=per_minute)
    trial.expect(isinstance(rest, StageResult) and rest.skipped + rest.kept == requests, "the next run did the rest")
    trial.asked()


def _kept(result: Any) -> int:
    return result.kept if isinstance(result, StageResult) else -1


@contextmanager
def trial_of(nodes: int, url: str, folder: Path, head_cpus: int = 0) -> Iterator[Trial]:
    """A cluster before a service that is there already."""
    stop_ray()  # a Ray this process has had until now would be taken for the cluster
    with loopback_cluster(nodes, folder / "cluster.log", head_cpus) as cluster:
        trial = Trial(folder, url, cluster, nodes + bool(head_cpus))
        trial._control("POST")
        try:
            yield trial
        finally:
            stop_ray()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3, help="nodes with a worker each")
    parser.add_argument("--per-minute", type=int, default=600)
    parser.add_argument("--seconds", type=int, default=90, help="how long each of three runs takes at that pace")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="geofix-cluster-") as name:
        folder, port = Path(name), free_port()
        url = f"http://127.0.0.1:{port}"
        program = [sys.executable, "-m", "infra.offline", "--port", str(port), "--size", "200"]
        world = Server(program, f"{url}/health", folder / "world.log")
        begin_s = time.monotonic()
        try:
            world.ensure()
            with trial_of(options.nodes, url, folder) as trial:
                print(f"{options.nodes} nodes", flush=True)
                check_pace(trial, options.per_minute, options.seconds)
                check_day(trial, 200)
                check_gone(trial, 100, options.per_minute)
        finally:
            world.stop()
    print(f"{time.monotonic() - begin_s:.0f} s; {len(trial.wrong) or 'nothing'} wrong")
    raise SystemExit(bool(trial.wrong))


if __name__ == "__main__":
    main()
