"""Without a GPU the GPU benchmarks say so in one line and exit with a code of their own."""

import sys

import pytest
import torch

from bench import cards
from bench.__main__ import run
from bench.qwen_gpu import NOT_RUN


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["train_gpu", "rollouts_gpu", "cards"])
def test_without_a_gpu_it_says_so(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "train_gpu", "rollouts_gpu"])  # as `python -m bench` has them
    assert run([name]) == NOT_RUN
    said = capsys.readouterr().out.splitlines()
    assert sum("not run: no CUDA GPU" in line for line in said) == 1


def test_cards_are_forecast_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cards", "--forecast", "--memory", "24", "80"])
    assert cards.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 6
    fits = {(cell.card, cell.name): cell.fits for card in (24, 80) for cell in cards.cells_of(card)}
    assert fits[24, "lora sft"] and fits[24, "lora grpo"] and fits[80, "whole grpo"] and not fits[24, "whole sft"]


def test_a_card_is_judged_by_its_forecast() -> None:
    cell = cards.Cell(24, "lora", "sft", "", forecast_gib=21.0, fits=True, peak_gib=20.0)
    assert all(goal.held for goal in cards.goals([cell]))
    wrong = cards.Cell(24, "lora", "sft", "", forecast_gib=23.0, fits=True, peak_gib=20.0)
    full = cards.Cell(24, "lora", "grpo", "", forecast_gib=21.0, fits=True, trouble="out of memory")
    missed = [goal.what for goal in cards.goals([wrong, full]) if not goal.held]
    assert len(missed) == 2 and "the forecast is off" in missed[1]
