"""The demo's own SFT model measured by a pool of real vLLM, as by the embedded server: `make test-vllm`."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest

from tasks.lake import Lake

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = (
    "plan.places=6", "plan.countries=[DE, FR, GB]", "offline.port=8793",
    "plan.split={train: 0.5, validation: 0, benchmark: 0.5}", "collect.satellite.size_px=256",
    "curate.quality.kinds=[panorama, photo]", "curate.judge.view_max_pixels=300000", "spread.workers=1",
    "synthesize.also=[]", "train.sft.max_steps=60", "train.cold_start.max_steps=2", "train.grpo.max_steps=1",
    "difficulty.policy=answerer-base", "evaluate.split=train", "evaluate.max_images=1",
)  # fmt: skip
# Almost without chance, so that two engines draw the same tokens.
MEASURED = ("difficulty.policy=sft", "difficulty.k=2", "difficulty.temperature=0.0001", "difficulty.max_tokens=64")
POOL = (
    "models.pools.trained={gpus: 0, cpus: 0.5, start_s: 3600, engine_args: {enforce_eager: true, max_model_len: 4096, "
    'max_num_seqs: 16}, env: {VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: "1"}}'
)


def geofix(command: str, lake: Path, *options: str) -> subprocess.CompletedProcess[str]:
    sets = [word for option in options for word in ("--set", option)]
    profile = [] if command == "demo" else ["--profile", "offline"]
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", command, "--lake", str(lake), *profile, *sets],
        capture_output=True, text=True, timeout=5400, check=False, cwd=ROOT,
    )  # fmt: skip


def replicas() -> list[int]:
    """Processes that hold the pool's model."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if said.startswith("ray::ServeReplica:geofix-trained") and "LLMServer" in said:
            found.append(int(path.parent.name))
    return found


def attempts(lake: Path) -> pl.DataFrame:
    rows = Lake(lake).read("attempts")
    newest = rows.filter(pl.col("run_id") == rows.sort("written_at")["run_id"][-1])
    return newest.select("image_id", "trial", "answer", "error_km", "completion_tokens").sort("image_id", "trial")


@pytest.mark.vllm
def test_pass_at_k_of_the_demos_model_by_a_pool_is_that_of_the_embedded_server(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    done = geofix("demo", lake, *SMALL)
    assert done.returncode == 0, done.stderr[-3000:]
    by_pool = shutil.copytree(lake, tmp_path / "by-pool")
    done = geofix("difficulty", lake, *SMALL, *MEASURED)
    assert done.returncode == 0, done.stderr[-3000:]

    killed: list[int] = []

    def kill_once() -> None:
        """The first replica, a little after its start: the model loads, or answers already."""
        until_s = time.monotonic() + 3600
        while not killed and time.monotonic() < until_s:
            for process in replicas():
                time.sleep(15)
                os.kill(process, signal.SIGKILL)
                killed.append(process)
                return
            time.sleep(0.5)

    threading.Thread(target=kill_once, daemon=True).start()
    done = geofix("difficulty", by_pool, *SMALL, *MEASURED, POOL)
    assert done.returncode == 0, done.stderr[-3000:]
    assert killed, "no replica was there to be killed"
    assert replicas() == [], "the pool is put away"
    expected = attempts(lake)
    assert expected.height > 0 and attempts(by_pool).equals(expected)
    calls = Lake(by_pool).read("calls")
    assert calls["call_id"].n_unique() == calls.height, "nothing is stored twice"
