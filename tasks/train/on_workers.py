"""One training job on several processes, started by Ray Train: each is given its rank, and rank 0 writes."""

import logging
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings
from tasks.runtime.on_ray.placement import Wanted, place
from tasks.runtime.on_ray.watch import named_nodes
from tasks.train.result import partial_folder

logger = logging.getLogger(__name__)
LOSSES = 3  # of workers in a row, without a newer checkpoint in between
# How gloo and NCCL say that another process of the group is gone.
PEER_GONE = ("closed by peer", "Connection reset by peer", "remote process exited")
NODES_S = 600.0  # how long a cluster may take to replace a lost node

# Starting is importing: the controller and each worker are new processes, and a worker's imports take ten seconds of a
# CPU. So nothing else is started, and a busy machine is given time.
SETTINGS = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",  # its minute is too short where every core is taken
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one more process; checkpoints are ours
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon the end of a stage is noticed
}


def run_on_workers(arguments: Mapping[str, Any], settings: TrainSettings) -> None:
    """Call `train_model(**arguments, ranks)` in `train.workers` processes; returns when all are done.

    A worker has a GPU of its own where the cluster has GPUs; fewer GPUs than workers are refused. Workers of several
    machines share the lake: its folder where it is on a disk, its object store otherwise. When a node or a worker is
    lost, all are started again and go on from the last checkpoint, as long as there is a newer one each time.
    """
    lost, last_step = 0, -1
    while True:
        try:
            _fit(arguments, settings)
            return
        except Exception as error:
            if not is_lost(error):
                raise _cause(error) from error
            step = _last_step(arguments)
            lost = 1 if step > last_step else lost + 1
            last_step = step
            if lost > LOSSES:
                raise GeofixError(
                    f"training workers were lost {lost} times after step {step} ({_first_line(_cause(error))}): its "
                    "last checkpoint stays; run the same command again when the nodes are sound"
                ) from error
            logger.warning("a training worker was lost (%s); all go on from step %d", _first_line(_cause(error)), step)
            _wait_for_nodes(settings)


def _fit(arguments: Mapping[str, Any], settings: TrainSettings) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    needed = worker_resources(settings, named_nodes())

    def loop() -> None:
        from tasks.train.ranks import Ranks
        from tasks.train.training import train_model

        train_model(**arguments, ranks=Ranks.joined())

    has_gpus = "GPU" in needed
    with tempfile.TemporaryDirectory(prefix="geofix-ray-train-") as folder:
        TorchTrainer(
            loop,
            torch_config=TorchConfig(backend="nccl" if has_gpus else "gloo"),
            scaling_config=ScalingConfig(num_workers=settings.workers, use_gpu=has_gpus, resources_per_worker=needed),
            run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=0)),
        ).fit()


def workers_wanted(settings: TrainSettings, nodes: Mapping[str, Mapping[str, float]]) -> Wanted:
    """The training workers: each with a GPU where any node has one."""
    has_gpus = any(node.get("GPU", 0) >= 1 for node in nodes.values())
    each = {"CPU": float(settings.threads), **({"GPU": 1.0} if has_gpus else {})}
    return Wanted("train.workers", settings.workers, each, "lower train.workers or train.threads, or add nodes")


def worker_resources(settings: TrainSettings, nodes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What Ray is to give each training worker; GeofixError where the nodes cannot hold all of them."""
    wanted = workers_wanted(settings, nodes)
    place([wanted], nodes)
    return dict(wanted.each)


def is_lost(error: BaseException) -> bool:
    """Whether a worker's process or node went away, rather than that training failed in it.

    The others fail with it, as they wait for what it was to send, and may be the first to say so: Ray takes a while to
    notice that a node is gone.
    """
    from ray.exceptions import RayError, RayTaskError

    failures = list((getattr(error, "worker_failures", None) or {}).values())
    causes = [getattr(failure, "health_check_failure", failure) for failure in failures]
    if any(isinstance(getattr(cause, "cause", cause), GeofixError) for cause in causes):
        return False
    if any(isinstance(cause, RayError) and not isinstance(cause, RayTaskError) for cause in causes):
        return True
    return bool(causes) and all(any(text in str(cause) for text in PEER_GONE) for cause in causes)


def _wait_for_nodes(settings: TrainSettings, patience_s: float = NODES_S) -> None:
    """Until the cluster can hold all workers again."""
    end = time.monotonic() + patience_s
    while True:
        try:
            worker_resources(settings, named_nodes())
            return
        except GeofixError:
            if time.monotonic() > end:
                raise
            time.sleep(2)


def _last_step(arguments: Mapping[str, Any]) -> int:
    """The step of the newest checkpoint, as far as this node can know it."""
    from tasks.train.checkpoints import checkpoints

    if arguments.get("stored") is not None:
        arguments["stored"].fetch()
    complete = checkpoints(partial_folder(arguments["models"] / arguments["link"].model_id))
    return int(complete[-1].name.rpartition("-")[2]) if complete else 0


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def _cause(error: BaseException) -> BaseException:
    """What a worker raised, rather than that Ray Train ended."""
    failures = getattr(error, "worker_failures", None) or {}
    errors = [error for _, error in sorted(failures.items())]
    inner = [getattr(error, "cause", None) or error for error in errors]
    for cause in inner:
        if isinstance(cause, GeofixError):
            return GeofixError(str(cause))
    return GeofixError(f"a training worker failed: {inner[0]}") if inner else error
