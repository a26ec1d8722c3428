"""Checkpoints in an object store, without a shared disk: a job goes on at another node, and a lost worker's too."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bench.loopback_cluster import loopback_cluster
from bench.train_kills import by_text
from schemas.errors import GeofixError
from schemas.settings.spread import SpreadSettings
from schemas.settings.train import GrpoSettings, TrainSettings, TunerSettings
from tasks.lake import Lake
from tasks.lake.blobs import Blob, LocalBlobs, checked
from tasks.runtime.on_ray.placement import Wanted, place
from tasks.runtime.on_ray.start import start_ray, stop_ray
from tasks.runtime.stage import open_inputs
from tasks.runtime.steps import Steps
from tasks.train.chain import Link, chain
from tasks.train.on_workers import is_lost, run_on_workers
from tasks.train.result import Result, finished_result
from tasks.train.samples import STAGE, compute
from tasks.train.stage import MODELS
from tasks.train.stored import StoredJob
from tasks.train.training import train_model


class Store(LocalBlobs):
    """A folder that stands for an object store, as one node sees it: `local` is that node's own disk."""

    is_local = False

    def __init__(self, store: Path, disk: Path) -> None:
        super().__init__(store)
        self._store, self._disk = store, disk

    def local(self, key: str) -> Path:
        return self._disk / checked(key)

    def find(self, key: str) -> Blob | None:
        return LocalBlobs(self._store).find(key)

    def list(self, prefix: str) -> Iterator[Blob]:
        return LocalBlobs(self._store).list(prefix)

    def delete(self, key: str) -> None:
        LocalBlobs(self._store).delete(key)

    def push(self, prefix: str, last: str = "") -> None:
        shutil.copytree(self.local(prefix), self._store / prefix, dirs_exist_ok=True)

    def pull(self, prefix: str) -> Path:
        if (self._store / prefix).is_dir():
            shutil.copytree(self._store / prefix, self.local(prefix), dirs_exist_ok=True)
        return self.local(prefix)


class Lost(BaseException):
    """The node went away."""


@pytest.mark.parametrize("phase", ["sft", pytest.param("grpo", marks=pytest.mark.whole)])
def test_a_job_goes_on_at_a_node_that_has_nothing_of_it(
    phase: str,
    lake: Lake,
    filled: Callable[..., str],
    settings: Callable[..., TrainSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.train.training.recipe_scorer", by_text)
    filled(lake)
    given = settings(
        phases=(phase,), save_steps=2, sft=TunerSettings(max_steps=8, batch_size=4, learning_rate=3e-3),
        grpo=GrpoSettings(
            max_steps=8, group_size=4, prompts_per_generation=2, prompts_per_step=2, micro_batch=8,
            learning_rate=1e-3, max_completion_tokens=8,
        ),
    )  # fmt: skip
    samples = compute(open_inputs(STAGE, lake), given)[0]
    [link] = chain(samples, given)
    store = tmp_path / "store"

    def job(node: str) -> dict[str, Any]:
        blobs = Store(store, tmp_path / node)
        stored = StoredJob(blobs, MODELS, link.model_id, None)
        return {"models": tmp_path / node / MODELS, "store": lake.images, "stored": stored}

    def lost(steps: Steps) -> None:
        if steps.done == 7:
            raise Lost

    whole = train_model(link, samples, given, tmp_path / "alone", lake.images)
    with pytest.raises(Lost):
        train_model(link, samples, given, report=lost, **job("a"))
    there = sorted(path.parent.name for path in store.glob(f"{MODELS}/.*/checkpoint-*/progress.json"))
    assert there == ["checkpoint-4", "checkpoint-6"], "the two newest, in the store"
    # A checkpoint that only a disk holds is not gone on from: the other processes would be at another step.
    [newer] = (tmp_path / "a").glob(f"{MODELS}/.*/checkpoint-6")
    shutil.copytree(newer, newer.with_name("checkpoint-7"))
    job("a")["stored"].fetch()
    assert not newer.with_name("checkpoint-7").exists() and newer.exists()

    resumed = train_model(link, samples, given, **job("b"))
    assert resumed.metrics == whole.metrics
    assert not list(store.glob(f"{MODELS}/.*/*/*.*")), "no checkpoint is left"
    weights = [one / "model.safetensors" for one in (whole.checkpoint, store / MODELS / link.model_id)]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "the same weights, bit for bit"
    again = train_model(link, samples, given, **job("c"))
    assert finished_result(tmp_path / "c" / MODELS / link.model_id) == again, "a third node finds it finished"

    # Killed after the model was finished and before it was uploaded.
    shutil.rmtree(store)
    job("b")["stored"].publish()
    assert (store / MODELS / link.model_id / "result.json").is_file()


def test_a_plan_fills_nodes_in_turn_and_says_what_does_not_fit() -> None:
    nodes = {"a": {"CPU": 8.0, "GPU": 2.0}, "b": {"CPU": 8.0, "GPU": 4.0}, "c": {"CPU": 64.0}}
    workers = Wanted("train.workers", 4, {"CPU": 1.0, "GPU": 1.0}, "lower train.workers")
    pool = Wanted("pool eyes", 1, {"GPU": 2.0}, "lower gpus")
    assert place([workers, pool], nodes) == {"train.workers": {"a": 2, "b": 2}, "pool eyes": {"b": 1}}
    with pytest.raises(GeofixError) as error:
        place([workers, pool, Wanted("pool ears", 1, {"GPU": 1.0}, "lower gpus")], nodes)
    assert str(error.value) == (
        "1 x pool ears need 1 GPU each, and the cluster has a (8 CPUs and 2 GPUs), b (8 CPUs and 4 GPUs), c (64 CPUs): "
        "there is room for 0; lower gpus"
    )


def test_a_lost_process_is_told_from_a_failure_in_it() -> None:
    from ray.exceptions import ActorDiedError, RayTaskError

    class Ended(Exception):
        def __init__(self, **failures: BaseException) -> None:
            self.worker_failures = dict(enumerate(failures.values()))

    class Unhealthy(Exception):
        health_check_failure = ActorDiedError()

    assert is_lost(Ended(a=Unhealthy(), b=RuntimeError("connection closed by peer")))
    assert is_lost(Ended(a=RuntimeError("pair.cc:553] Connection closed by peer [127.0.0.1]:21402"))), (
        "before Ray knows"
    )
    assert not is_lost(Ended(a=RuntimeError("a bug")))
    assert not is_lost(Ended(a=RuntimeError("a bug"), b=RuntimeError("Connection closed by peer"))), "it has a cause"
    assert not is_lost(Ended(a=Unhealthy(), b=GeofixError("the disk is full")))
    failed = RayTaskError("f", "trace", ValueError("x"), "t", 1, "127.0.0.1")
    assert not is_lost(Ended(a=failed)) and not is_lost(ValueError("x"))


def by_two_workers(lake: Lake, settings: Callable[..., TrainSettings]) -> tuple[TrainSettings, pl.DataFrame, Link]:
    """SFT of five steps by two processes, with a checkpoint every second step."""
    tuner = TunerSettings(max_steps=5, batch_size=4, learning_rate=3e-3)
    given = settings(phases=("sft",), workers=2, save_steps=2, sft=tuner)
    samples = compute(open_inputs(STAGE, lake), given)[0]
    [link] = chain(samples, given)
    return given, samples, link


@pytest.mark.slow
def test_a_killed_worker_ends_in_a_resumed_step(
    lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    """Two workers over gloo; rank 0 is killed at step 3 and all go on from the checkpoint of step 2."""
    filled(lake)
    given, samples, link = by_two_workers(lake, settings)
    killed = tmp_path / "killed"
    steps = tmp_path / "steps"

    def report(done: Steps) -> None:
        with steps.open("a") as file:
            file.write(f"{done.done}\n")
        if done.done == 3 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    arguments: dict[str, Any] = {
        "link": link, "all_samples": samples, "settings": given, "models": tmp_path / MODELS, "store": lake.images,
        "report": report,
    }  # fmt: skip
    start_ray(SpreadSettings(object_store_mb=80))
    try:
        run_on_workers(arguments, given)
    finally:
        stop_ray()
    assert killed.exists()
    assert steps.read_text().split() == ["0", "1", "2", "3", "2", "3", "4", "5"]
    result = finished_result(tmp_path / MODELS / link.model_id)
    assert isinstance(result, Result)
    assert [entry["step"] for entry in result.history] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_lost_node_ends_in_a_resumed_step(
    lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    """Three nodes, two workers over gloo: the node of rank 0 goes at step 3, and the third takes its place."""
    filled(lake)
    given, samples, link = by_two_workers(lake, settings)
    steps, nodes = tmp_path / "steps", tmp_path / "nodes"

    def report(done: Steps) -> None:
        import ray

        with steps.open("a") as file:
            file.write(f"{done.done}\n")
        if done.done == 3 and not nodes.exists():
            nodes.write_text(ray.get_runtime_context().get_node_id())
            time.sleep(120)  # in which its node goes

    arguments: dict[str, Any] = {
        "link": link, "all_samples": samples, "settings": given, "models": tmp_path / MODELS, "store": lake.images,
        "report": report,
    }  # fmt: skip
    with loopback_cluster(3, tmp_path / "cluster.log") as cluster:

        def take_node() -> None:
            while not (nodes.exists() and nodes.read_text()):
                time.sleep(0.2)
            cluster.kill(nodes.read_text())

        threading.Thread(target=take_node, daemon=True).start()
        start_ray(SpreadSettings(address=cluster.address))
        try:
            run_on_workers(arguments, given)
        finally:
            stop_ray()
    assert steps.read_text().split() == ["0", "1", "2", "3", "2", "3", "4", "5"]
    assert finished_result(tmp_path / MODELS / link.model_id) is not None
