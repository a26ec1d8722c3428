"""The folder of `geofix verl` in verl's own hands: its reader, its GRPO functions, its configuration, its tools.

verl pins other versions than geofix does. So it is installed without its dependencies into a folder of its own
(`.verl`), with the few packages it needs on a CPU, and the checks run in a process that sees both. Exit code 77 where
it cannot be installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".verl"
PINNED = (
    "verl==0.9.1",
    "tensordict==0.15.3",
    "hydra-core==1.3.8",
    "omegaconf==2.4.0",
    "antlr4-python3-runtime==4.9.3",
    "codetiming==1.4.0",
    "pyvers==0.2.3",
    "torchdata==0.11.0",
)
MISSING = 77


def install() -> bool:
    """Whether verl lies in its folder, installed if need be."""
    if (FOLDER / "verl").is_dir():
        return True
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", str(FOLDER)]
    links = os.environ.get("PIP_FIND_LINKS")
    uv = Path(sys.executable).with_name("uv")
    command[0] = str(uv) if uv.exists() else "uv"
    return subprocess.run([*command, *(("--find-links", links) if links else ()), *PINNED], check=False).returncode == 0


def check() -> subprocess.CompletedProcess[str]:
    """Run the checks in a process of their own."""
    # Ours first: verl's wheel brings a package `tests` of its own.
    path = os.pathsep.join([str(ROOT), str(FOLDER)])
    quiet = {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="geofix-verl-cache-") as cache:
        own = {
            "PYTHONPATH": path, "VERL_USE_EXTERNAL_PLUGINS": "none", "HF_DATASETS_CACHE": cache,
            "HF_MODULES_CACHE": cache,
        }  # fmt: skip
        command = [sys.executable, "-m", "bench.verl_checks"]
        return subprocess.run(command, env={**os.environ, **quiet, **own}, text=True, check=False)


def main(arguments: list[str] | None = None) -> int:
    if not install():
        print("   verl cannot be installed here")
        return MISSING
    return check().returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
