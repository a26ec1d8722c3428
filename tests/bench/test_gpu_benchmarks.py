"""Without a GPU the GPU benchmarks say so in one line and exit with a code of their own."""

import sys

import pytest
import torch

from bench.__main__ import run
from bench.qwen_gpu import NOT_RUN


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["train_gpu", "rollouts_gpu"])
def test_without_a_gpu_it_says_so(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "train_gpu", "rollouts_gpu"])  # as `python -m bench` has them
    assert run([name]) == NOT_RUN
    said = capsys.readouterr().out.splitlines()
    assert sum("not run: no CUDA GPU" in line for line in said) == 1
