"""Ray that does not come up, is lost, or gives no worker: one line that says what to do, and never a silent wait."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import polars as pl
import pytest
import ray
from pydantic import ValidationError
from ray import cloudpickle
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RaySystemError

import tasks.runtime.on_ray.backend
import tasks.runtime.on_ray.pool
import tasks.runtime.on_ray.start as ray_home
from flows.cli.command import Call, run_command
from schemas.errors import GeofixError
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray.pool import spread
from tasks.runtime.on_ray.watch import Watch, fitting
from tasks.runtime.stage import Resources

pytestmark = pytest.mark.whole

cloudpickle.register_pickle_by_value(sys.modules[__name__])

HERE = SpreadSettings(workers=2)


@pytest.fixture(scope="module", autouse=True)
def _without_ray_of_other_files() -> None:
    ray_home.stop_ray()  # a Ray that another file of this process has left would be taken for a start


class TestStart:
    """With Ray's own start replaced: what it raises was seen when its servers were stopped or killed."""

    @pytest.fixture
    def starts(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Path]]:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        monkeypatch.setattr(ray_home.atexit, "register", lambda *called: None)
        for name in (*ray_home.ENVIRONMENT, "RAY_AUTH_MODE"):
            monkeypatch.setenv(name, os.environ.get(name, ""))
        folders: list[Path] = []

        def script(*outcomes: Exception | None) -> list[Path]:
            waiting = list(outcomes)

            def init(**options: Any) -> None:
                folders.append(Path(os.environ["RAY_TMPDIR"]))
                outcome = waiting.pop(0)
                if outcome is not None:
                    raise outcome

            monkeypatch.setattr(ray, "init", init)
            return folders

        return script

    def test_one_that_comes_too_late_is_tried_once_more(self, starts: Any, caplog: pytest.LogCaptureFixture) -> None:
        tried = starts(Exception("The current node timed out during startup."), None)
        ray_home.start_ray(HERE)
        assert len(tried) == 2
        assert "trying once more" in caplog.text and "load" in caplog.text

    def test_one_that_never_comes_is_one_line(self, starts: Any, capsys: pytest.CaptureFixture[str]) -> None:
        tried = starts(RuntimeError("Timed out waiting\nfor file"), RuntimeError("Timed out waiting\nfor file"), None)

        def action() -> int:
            ray_home.start_ray(HERE)
            return 0

        with pytest.raises(SystemExit) as ended:
            run_command(Call(), action)
        assert ended.value.code == 1 and len(tried) == 2
        (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("geofix:")]
        assert "did not come up" in line and "Timed out waiting for file" in line
        assert "spread.address" in line and str(tried[0]) in line and "bug" not in line

    def test_what_a_failed_start_left_running_is_ended(self, starts: Any) -> None:
        starts()
        left: list[subprocess.Popen[bytes]] = []
        other = subprocess.Popen(["sleep", "600"])

        def init(**options: Any) -> None:
            with (Path(os.environ["RAY_TMPDIR"]) / "raylet.out").open("w") as log:
                left.append(subprocess.Popen(["sleep", "600"], stdout=log))
            raise RuntimeError("too late")

        with pytest.MonkeyPatch.context() as patch, pytest.raises(GeofixError, match="did not come up"):
            patch.setattr(ray, "init", init)
            ray_home.start_ray(HERE)
        survived = other.poll() is None
        other.kill()
        other.wait()
        assert [one.wait(300) for one in left] == [-signal.SIGKILL] * 2
        assert survived, "only what writes to Ray's folder is ended"

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), ["no space is left in", "TMPDIR"]),
            (PermissionError(errno.EACCES, "Permission denied"), ["Permission denied", "TMPDIR"]),
            (ValueError("not enough\nmemory"), ["spread.object_store_mb=256", "not enough memory"]),
        ],
    )
    def test_what_another_try_does_not_mend_is_not_tried(self, starts: Any, error: Exception, words: list[str]) -> None:
        tried = starts(error, None)
        with pytest.raises(GeofixError) as caught:
            ray_home.start_ray(HERE)
        assert len(tried) == 1 and "\n" not in str(caught.value)
        assert all(word in str(caught.value) for word in words)

    def test_a_folder_with_too_long_a_name(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        folder = tmp_path / ("long" * 25)
        folder.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        with pytest.raises(GeofixError, match=r"107 bytes.*set TMPDIR"):
            ray_home.start_ray(HERE)
        assert not ray.is_initialized()


class TestJoin:
    @pytest.mark.parametrize("address", ["auto", "local", "head", "head:", "head:port", "http://head", "ray://head"])
    def test_an_address_names_one_cluster(self, address: str) -> None:
        with pytest.raises(ValidationError, match="must be host:port or ray://host:port"):
            SpreadSettings(address=address)

    @pytest.mark.parametrize(
        ("address", "parts"),
        [("head:6379", ("head", 6379)), ("ray://10.0.0.1:10001", ("10.0.0.1", 10001)), ("[::1]:6379", ("::1", 6379))],
    )
    def test_a_good_one_is_taken_apart(self, address: str, parts: tuple[str, int]) -> None:
        settings = SpreadSettings(address=address)
        assert settings.address is not None and ray_home.split_address(settings.address) == parts

    def refused(self, address: str) -> str:
        with pytest.raises(GeofixError) as caught:
            ray_home.start_ray(SpreadSettings(address=address))
        assert not ray.is_initialized() and "\n" not in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize("scheme", ["", "ray://"])
    def test_nothing_listens(self, scheme: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            said = self.refused(f"{scheme}127.0.0.1:{taken.getsockname()[1]}")
        assert "spread.address: nothing answers at" in said and "refused" in said and "ray start --head" in said

    def test_an_unknown_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: Any) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "create_connection", unknown)
        assert "no machine is known as 'hed' (Name or service not known)" in self.refused("hed:6379")

    def test_another_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_home, "ANSWER_S", 1.0)
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer() -> None:
                while True:
                    try:
                        connection, _ = server.accept()
                    except OSError:
                        return
                    with connection:
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

            threading.Thread(target=answer, daemon=True).start()
            said = self.refused(f"127.0.0.1:{server.getsockname()[1]}")
            server.shutdown(socket.SHUT_RDWR)
        assert "is not the head of a Ray cluster" in said and "6379" in said

    def test_another_port_of_ray(self) -> None:
        server = grpc.server(ThreadPoolExecutor(1))  # like Ray's client server: gRPC, but not what is asked for
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            said = self.refused(f"127.0.0.1:{port}")
        finally:
            server.stop(None)
        assert "(unimplemented)" in said and "ray://HOST:10001" in said


def doubled() -> Callable[[pl.DataFrame], int]:
    return lambda chunk: 2 * chunk.height


def process_id() -> Callable[[pl.DataFrame], int]:
    return lambda chunk: os.getpid()


def process_id_later() -> Callable[[pl.DataFrame], Any]:
    async def call(chunk: pl.DataFrame) -> int:
        return os.getpid()

    return call


class _Holder:
    """Takes CPUs and does nothing."""


class _CannotStart:
    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'tasks'")

    def run(self, *_: Any) -> None: ...


class TestWorkers:
    @pytest.fixture(scope="class", autouse=True)
    def private_ray(self) -> Iterator[None]:
        ray_home.start_ray(HERE)
        yield
        ray_home.stop_ray()

    def work(self, settings: SpreadSettings = HERE, resources: Resources = Resources(workers=1)) -> list[Any]:
        items = pl.DataFrame({"id": ["a", "b"]})
        return list(spread(items, doubled, settings, resources))

    def test_those_of_a_step_with_one_worker_are_kept_beside_the_others(self) -> None:
        """So a model is trained, tried by workers of their own, and trained on, without a new process."""
        items = pl.DataFrame({"id": ["a", "b"]})

        def tried() -> set[int]:
            return set(spread(items, process_id_later, HERE, Resources(chunk=1), is_async=True))

        def trained() -> set[int]:
            return set(spread(items, process_id, HERE, Resources(cpus=2, workers=1)))

        first = tried(), trained()
        assert (tried(), trained()) == first and not first[0] & first[1]

    def test_another_cluster_is_not_taken_for_this_one(self) -> None:
        with pytest.raises(GeofixError, match=r"spread\.address: .*on this machine already.*'head:6379'"):
            ray_home.start_ray(SpreadSettings(address="head:6379"))
        assert self.work() == [4]

    def test_those_that_no_node_can_hold_are_not_waited_for(self) -> None:
        with pytest.raises(GeofixError) as caught:
            self.work(resources=Resources(gpus=1, workers=1))
        assert "needs 1 CPUs and 1 GPUs on one node" in str(caught.value) and "spread.address" in str(caught.value)

    def test_busy_ones_are_waited_for_aloud_and_not_for_ever(self, caplog: pytest.LogCaptureFixture) -> None:
        tasks.runtime.on_ray.backend.release_workers()

        holders = [ray.remote(_Holder).options(num_cpus=1).remote() for _ in range(int(ray.cluster_resources()["CPU"]))]
        ray.get([holder.__ray_ready__.remote() for holder in holders], timeout=600)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(GeofixError) as caught:
            patch.setattr("tasks.runtime.on_ray.watch.SAY_EVERY_S", 0.5)
            self.work(SpreadSettings(workers=2, wait_s=3), Resources())
        assert "of which 0 CPUs" in str(caught.value) and "spread.wait_s" in str(caught.value)
        assert "waiting up to spread.wait_s=3" in caplog.text
        for holder in holders:
            ray.kill(holder)
        assert sum(self.work()) == 4, "and when there is room again, the work is done"

    def test_one_that_never_comes_leaves_its_share_to_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tasks.runtime.on_ray.backend.release_workers()
        monkeypatch.setattr(tasks.runtime.on_ray.pool, "STARTING_S", 1.0)
        holder = ray.remote(_Holder).options(num_cpus=ray.cluster_resources()["CPU"] - 1).remote()
        ray.get(holder.__ray_ready__.remote(), timeout=600)
        items = pl.DataFrame({"id": [str(k) for k in range(12)]})
        try:
            assert sum(spread(items, doubled, HERE, Resources(workers=2, chunk=1))) == 24
        finally:
            ray.kill(holder)

    def test_those_that_cannot_start_end_the_stage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tasks.runtime.on_ray.backend.release_workers()
        monkeypatch.setattr(tasks.runtime.on_ray.backend, "SyncWorker", _CannotStart)
        with pytest.raises(GeofixError, match=r"workers cannot start: .*No module named 'tasks'.*every node needs"):
            self.work()

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (ObjectStoreFullError("full"), ["spread.object_store_mb=256"]),
            (OutOfDiskError("full"), ["no space left", "TMPDIR"]),
            (RaySystemError("odd\nthings"), ["Ray failed (RaySystemError", "odd things"]),
        ],
    )
    def test_what_else_goes_wrong_with_ray_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, words: list[str]
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(tasks.runtime.on_ray.pool.Pool, "_wait", broken)
        with pytest.raises(GeofixError) as caught:
            self.work()
        said = str(caught.value)
        assert all(word in said for word in [*words, "what was finished is saved"]) and "\n" not in said


def test_a_lost_node_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cluster = [{"NodeID": name, "NodeManagerHostname": f"host-{name}", "Alive": name != "a"} for name in "abc"]
    monkeypatch.setattr(ray, "nodes", lambda: cluster)
    session = ray_home.RaySession(SpreadSettings(address="ray://head:10001"), {})
    monkeypatch.setattr("tasks.runtime.on_ray.watch.current_session", lambda: session)
    watch = Watch()
    watch.check(at_once=True)
    assert not caplog.text
    cluster[2]["Alive"] = False
    watch.check(at_once=True)
    watch.check(at_once=True)
    assert caplog.text.count("node host-c left the Ray cluster") == 1 and "host-a" not in caplog.text


def test_a_worker_lies_on_one_node() -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}, {}]
    assert fitting(nodes, 1, 0) == 8 and fitting(nodes, 2, 0) == 3 and fitting(nodes, 1, 1) == 1
    assert fitting(nodes, 5, 0) == 0 and fitting(nodes, 0.5, 0.25) == 4


LOSING = """
import contextlib, json, os, signal, sys, time
import polars as pl
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.runtime.runner import Context, Kept, Resources, Stage, run
from schemas.errors import GeofixError
from tasks.lake import Lake
from tasks.services import connect
from tasks.runtime.on_ray.watchdog import processes_of
from tasks.runtime.on_ray.start import folder_of
import ray
from ray import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules["__main__"])

class Nothing(Settings): ...

def items(inputs, settings):
    return pl.DataFrame({"id": [f"n{k}" for k in range(8)]})

def work(item, bench):
    while int(item["id"][1:]) >= 4:  # the first half is quick, the second is never done
        time.sleep(0.1)
    return Kept({"places": [{"place_id": item["id"], "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}]})

STAGE = Stage("lose", (), ("places",), items, work, lambda s, w: None, resources=Resources(workers=2, chunk=1))

def progress(tick):
    if tick.done == 1:
        [pid] = [one for one in processes_of(str(folder_of(os.getpid())))
                 if b"gcs_server" in open(f"/proc/{one}/cmdline", "rb").read().split(b" ")[0].split(b"\\0")[0]]
        os.kill(pid, signal.SIGKILL)

context = Context(Lake(sys.argv[1]), connect(ServicesSettings(), {}), SpreadSettings(), progress)
try:
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints what its servers report
        run(STAGE, Nothing(), context)
except GeofixError as error:
    said = str(error)
status = context.lake.read("runs")["status"].to_list()
print(json.dumps({"said": said, "rows": context.lake.read("places").height, "status": status,
                  "has_ray": ray.is_initialized()}))
"""


def test_a_lost_ray_ends_the_stage_in_one_line_with_what_is_done_saved(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSING, str(tmp_path)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "Ray's control server ended" in found["said"] and "run the same command again" in found["said"]
    assert "\n" not in found["said"] and found["status"] == ["interrupted"]
    assert 1 <= found["rows"] <= 4
    assert not found["has_ray"], "another may be started in the same process"
