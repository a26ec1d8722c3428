"""No room on the disk or on the GPU, and checkpoints that cannot be read: one line each, nothing half-written.

The disks are real (a small tmpfs, a limit on the size of files). There is no GPU here: what torch says of one that is
taken or full is given to the code that asks for memory, word for word.
"""

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.train_kills import prepared
from bench.training_lake import small_settings
from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings, TunerSettings
from tasks.lake import Lake
from tasks.runtime.runner import Kept
from tasks.train import checkpoints, training
from tasks.train.chain import chain
from tasks.train.checkpoints import Progress, resume_checkpoint, save_checkpoint
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.stage import WorkerContext, work

BUSY = """CUDA error: all CUDA-capable devices are busy or unavailable
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
"""
FULL = "CUDA out of memory. Tried to allocate 130.00 MiB. GPU 0 has a total capacity of 139.72 GiB."


def settings() -> TrainSettings:
    return small_settings(
        phases=("sft",), save_steps=1, validation_images=0,
        sft=TunerSettings(max_steps=2, batch_size=2, micro_batch=2, learning_rate=1e-3),
    )  # fmt: skip


def train(lake: Lake) -> Any:
    chosen = settings()
    [link] = chain(lake.read("samples"), chosen)
    item = {"id": link.model_id, "training_stage": "sft", "snapshot_id": "s", "samples": link.samples}
    return work(item, WorkerContext(lake, chosen))


def refused(lake: Lake) -> str:
    with pytest.raises(GeofixError) as error:
        train(lake)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return prepared(tmp_path / "lake", settings())


@pytest.fixture
def small_disk(lake: Lake) -> Iterator[Callable[[str], None]]:
    """Puts the lake's models on a disk of its own of a size that can be changed."""
    folder = lake.root / "models"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "geofix-test", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    yield resize
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_at_any_moment_of_training(
    lake: Lake, small_disk: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in ("64k", "8m"):
        small_disk(size)
        assert "no room on the disk for the checkpoint of step 1: it needs " in refused(lake), "asked beforehand"
    monkeypatch.setattr(checkpoints, "MARGIN_BYTES", -(10**12))  # as if others filled the disk after it was asked
    small_disk("1500k")
    found = refused(lake)
    assert "no room on the disk for" in found and "free some and run again" in found
    models = lake.root / "models"
    assert not [path for path in models.iterdir() if not path.name.startswith(".")], "no model by halves"
    assert not list(models.glob(".*.partial/.checkpoint-*"))
    small_disk("100m")
    assert isinstance(train(lake), Kept), "the same command goes on"


def test_the_largest_file_that_is_allowed(tmp_path: Path, build_tiny: Callable[..., Any]) -> None:
    model = build_tiny()
    optimizer = StochasticAdamW(model.parameters())
    kept = save_checkpoint(tmp_path, model, optimizer, Progress(step=1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(GeofixError, match="no room on the disk for the checkpoint of step 2"):
            save_checkpoint(tmp_path, model, optimizer, Progress(step=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, build_tiny: Callable[..., Any]) -> None:
    model = build_tiny()
    optimizer = StochasticAdamW(model.parameters())
    older, newer = (save_checkpoint(tmp_path, model, optimizer, Progress(step=step)) for step in (1, 2))
    weights = newer / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert resume_checkpoint(tmp_path, model, optimizer).step == 1
    (older / "optimizer.pt").write_bytes(b"")
    with pytest.raises(GeofixError, match=r"none of the checkpoints in .* can be read; delete the folder"):
        resume_checkpoint(tmp_path, model, optimizer)
    assert resume_checkpoint(tmp_path / "empty", model, optimizer).step == 0


def test_a_gpu_that_is_taken(lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**20, 140 * 2**30))
    assert "other processes left 0 of the GPU's 140 GiB free: end them" in refused(lake)
    assert "sft: pack_tokens=" in caplog.text and "of the GPU's 140.0 GiB" in caplog.text, "what auto has chosen"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**20, 2**20))
    assert "the GPU has 0: set" in refused(lake)

    def busy() -> tuple[int, int]:
        raise torch.AcceleratorError(BUSY)

    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    found = refused(lake)
    assert "the GPU cannot be used (CUDA error: all CUDA-capable devices are busy or unavailable)" in found
    assert list((lake.root / "models").iterdir()) == [], "nothing was written"


def test_a_gpu_that_fills_up_while_weights_are_loaded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (12 * 2**20, 140 * 2**30))

    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError(FULL)

    monkeypatch.setattr(training, "prepare_model", full)
    found = refused(lake)
    assert "the GPU's memory is full (0 of 140 GiB free): lower train.pack_tokens" in found
