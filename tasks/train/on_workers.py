"""One training job on several processes, started by Ray Train: each is given its rank, and rank 0 writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings

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

    A worker has a GPU of its own where the cluster has GPUs; fewer GPUs than workers are refused. The workers read and
    write the lake's folder of models: on several machines it must be a folder that all of them share.
    """
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    there = ray.cluster_resources()
    has_gpus = there.get("GPU", 0) > 0
    needed = worker_resources(settings, there)

    def loop() -> None:
        from tasks.train.ranks import Ranks
        from tasks.train.training import train_model

        train_model(**arguments, ranks=Ranks.joined())

    with tempfile.TemporaryDirectory(prefix="geofix-ray-train-") as folder:
        trainer = TorchTrainer(
            loop,
            torch_config=TorchConfig(backend="nccl" if has_gpus else "gloo"),
            scaling_config=ScalingConfig(num_workers=settings.workers, use_gpu=has_gpus, resources_per_worker=needed),
            run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=0)),
        )
        try:
            trainer.fit()
        except Exception as error:
            raise _cause(error) from error


def worker_resources(settings: TrainSettings, there: Mapping[str, float]) -> dict[str, float]:
    """What Ray is to give each training worker; GeofixError where the cluster has too little for all of them."""
    needed = {"CPU": float(settings.threads), **({"GPU": 1.0} if there.get("GPU", 0) > 0 else {})}
    for name, each in needed.items():
        if there.get(name, 0) < each * settings.workers:
            fields = "train.workers or train.threads" if name == "CPU" else "train.workers, or add GPU nodes"
            raise GeofixError(
                f"train.workers={settings.workers} need {each * settings.workers:g} {name}s and Ray has "
                f"{there.get(name, 0):g}: lower {fields}"
            )
    return needed


def _cause(error: BaseException) -> BaseException:
    """What a worker raised, rather than that Ray Train ended."""
    failures = getattr(error, "worker_failures", None) or {}
    found = [one for _, one in sorted(failures.items())]
    inner = [getattr(one, "cause", None) or one for one in found]
    for one in inner:
        if isinstance(one, GeofixError):
            return GeofixError(str(one))
    return GeofixError(f"a training worker failed: {inner[0]}") if inner else error
