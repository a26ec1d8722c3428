"""Several processes train one model: who has which sample, what the loss is divided by, and the same gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bench import train_workers
from bench.training_lake import small_settings
from schemas.errors import GeofixError
from schemas.settings.train import TrainSettings, TunerSettings
from tasks.runtime.stage import Stage
from tasks.train import STAGES, checkpoints
from tasks.train.checkpoints import save_model
from tasks.train.fast.families import fast_model
from tasks.train.on_workers import worker_resources
from tasks.train.policy_loss import token_weights
from tasks.train.ranks import Ranks
from tasks.train.supervised import Supervised, with_picture
from tasks.train.tiny import build_model, build_processor
from tasks.train.token_samples import Sample

Make = Callable[..., Sample]


class Apart(Ranks):
    """One of several processes, of which the others are not there: sums are its own."""

    def totals(self, *values: float) -> list[float]:
        return list(values)

    def most(self, value: int) -> int:
        return value


def test_too_few_gpus_are_refused_instead_of_training_on_cpus() -> None:
    settings = TrainSettings(workers=4, threads=2)
    assert worker_resources(settings, {"a": {"CPU": 16, "GPU": 4}}) == {"CPU": 2, "GPU": 1}
    assert worker_resources(settings, {"a": {"CPU": 8}}) == {"CPU": 2}
    with pytest.raises(GeofixError, match=r"need 2 CPUs and 1 GPU each, .* a \(16 CPUs and 2 GPUs\): .* room for 2"):
        worker_resources(settings, {"a": {"CPU": 16, "GPU": 2}})
    with pytest.raises(GeofixError, match=r"need 2 CPUs each.*room for 2; lower train\.workers or train\.threads"):
        worker_resources(settings, {"a": {"CPU": 4}})
    # GPUs of a node without CPUs hold no worker: what all nodes have together is not what one has.
    with pytest.raises(GeofixError, match=r"a \(16 CPUs\), b \(1 CPU and 4 GPUs\): there is room for 0"):
        worker_resources(settings, {"a": {"CPU": 16}, "b": {"CPU": 1, "GPU": 4}})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_sample_is_seen_once_an_epoch_over_all_processes(count: int, model: Any, make_sample: Make) -> None:
    tuner = TunerSettings(epochs=2, batch_size=5, micro_batch=2)
    settings = TrainSettings(sft=tuner, loader_threads=0)
    programs = [
        Supervised(fast_model(model), lambda n: make_sample(n, ()), 13, settings, tuner, Apart(rank, count))
        for rank in range(count)
    ]
    assert programs[0].steps == 6
    for epoch in range(2):
        parts = [one.ranks.part(one.batch(3 * epoch + place)) for one in programs for place in range(3)]
        assert sorted(number for part in parts for number in part) == list(range(13))
        assert max(map(len, parts)) - min(map(len, parts)) <= 5


def test_losses_of_the_processes_add_up_to_that_of_one(model: Any, make_sample: Make) -> None:
    """Each divides by the tokens of all, not by its own: their sizes differ."""
    tuner = TunerSettings(max_steps=1, batch_size=5, micro_batch=5)
    settings = TrainSettings(sft=tuner, loader_threads=0)
    grids: list[tuple[tuple[int, int, int], ...]] = [((1, 4, 4),), (), ((1, 6, 4),), (), ()]

    def encode(number: int) -> Sample:
        return make_sample(number, grids[number], 4 + 3 * number)

    def gradients(ranks: Ranks) -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        found = Supervised(fast_model(model), encode, 5, settings, tuner, ranks).gradients(0, None)  # type: ignore[arg-type]
        return float(found["loss"]), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    class Known(Apart):
        def totals(self, *values: float) -> list[float]:
            return [50.0, all_tokens, *values[2:]] if len(values) > 1 else list(values)

    all_tokens = float(sum(4 + 3 * number for number in range(5)))
    loss, whole = gradients(Ranks())
    parts = [gradients(Known(rank, 2)) for rank in range(2)]
    assert sum(part for part, _ in parts) == pytest.approx(loss, abs=1e-5)
    for name, gradient in whole.items():
        together = sum(part[name] for _, part in parts if name in part)
        torch.testing.assert_close(together, gradient, atol=1e-6, rtol=1e-5, msg=name)


def test_a_blank_picture_stands_in_only_where_the_tower_is_shared(model: Any, make_sample: Make) -> None:
    fast = fast_model(model)
    text, picture = make_sample(1, ()), make_sample(2, ((1, 4, 4),))
    assert with_picture([text], fast, Ranks()) == [text]
    assert with_picture([text, picture], fast, Apart(0, 2)) == [text, picture]
    blank = with_picture([text], fast, Apart(0, 2))[1]
    assert blank.grids == fast.blank_sample().grids == ((1, 2, 2),) and set(blank.labels) == {-100}


def test_token_weights_of_a_step_count_all_processes() -> None:
    whole = token_weights([3, 5, 4], [True, True, True], "grpo", 10)
    part = token_weights([3], [True], "grpo", 10, lambda *own: [3, 12])
    assert part == whole[:1]
    assert token_weights([3], [False], "dapo", 10, lambda *own: [2, 9]) == [0.0]


def test_a_step_without_a_picture_moves_the_tower_as_with_several_processes() -> None:
    """There a blank picture leaves zeros; without any gradient Adam would leave moments and weights as they are."""
    weight = torch.nn.Parameter(torch.ones(3))
    Ranks().add_up([weight])
    assert weight.grad is not None and not weight.grad.any()


def test_tied_weights_are_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering the shared-out weights makes copies of them; a saved model must have the tensors of one process."""
    small = small_settings()
    processor = build_processor(["Where?"], small.tiny, small.image_min_pixels, small.image_max_pixels)
    model = build_model(processor, small.tiny, 0)
    for name in ("one", "several"):
        save_model(tmp_path / name, model, processor)
        monkeypatch.setattr(checkpoints, "whole_state", lambda state, _: {n: t.clone() for n, t in state.items()})
    assert load_file(tmp_path / "one" / "model.safetensors").keys() == (
        load_file(tmp_path / "several" / "model.safetensors").keys()
    )


def test_settings_of_several_workers() -> None:
    stage = STAGES[1]
    assert isinstance(stage, Stage)
    waiting = stage.resources.under(TrainSettings(workers=2))
    assert (waiting.cpus, waiting.gpus) == (0, 0), "or the workers would wait for its CPUs"
    alone = TrainSettings()
    assert stage.resources.under(alone) == stage.resources
    assert alone.identity() == TrainSettings(workers=4, shard="none").identity(), "the same model"


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one() -> None:
    goals = train_workers.measure()
    assert len(goals) == 28
    assert [str(goal) for goal in goals if not goal.held] == []
