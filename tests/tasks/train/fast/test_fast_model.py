"""Packed training against transformers' own forward, one sample at a time: losses, gradients, positions, layouts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from schemas.errors import GeofixError
from tasks.train.fast.families import fast_model
from tasks.train.fast.flops import forward_flops
from tasks.train.fast.layout import VisionShape, vision_layout
from tasks.train.fast.model import is_worth_compiling
from tasks.train.fast.packing import bins, pack, positions_of
from tasks.train.fast.padding import pad_vision, plain_state
from tasks.train.token_samples import Sample

Plain = Callable[[Sample], dict[str, torch.Tensor]]
IMAGE = 5


def plain_loss(model: Any, samples: list[Sample], plain: Plain) -> torch.Tensor:
    """Mean over all trained tokens, from each sample alone."""
    total, count = torch.zeros(()), 0
    for one in samples:
        logits = model(**plain(one)).logits[0, :-1]
        labels = torch.tensor(one.labels[1:])
        total = total + torch.nn.functional.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
        count += int((labels != -100).sum())
    return total / count


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_packed_loss_and_gradients_are_those_of_single_samples(
    model: Qwen2_5_VLForConditionalGeneration, samples: list[Sample], plain: Plain, checkpointed: bool
) -> None:
    loss = plain_loss(model, samples, plain)
    expected = gradients(model, loss)
    fast = fast_model(model, checkpoint_vision=checkpointed)
    packed = fast.loss(pack(samples, IMAGE, 2, length=160))
    assert packed.item() == pytest.approx(loss.item(), abs=1e-5)
    found = gradients(model, packed)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_padded_vision_computes_the_same_and_saves_as_it_was(
    model: Qwen2_5_VLForConditionalGeneration, samples: list[Sample], plain: Plain
) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loss = plain_loss(model, samples, plain)
    pad_vision(model)
    assert model.model.visual.blocks[0].mlp.gate_proj.weight.shape[0] == 64
    packed = fast_model(model).loss(pack(samples, IMAGE, 2))
    assert packed.item() == pytest.approx(loss.item(), abs=1e-5)
    found = gradients(model, packed)
    assert not found["model.visual.blocks.0.mlp.gate_proj.weight"][50:].any()
    assert not found["model.visual.blocks.0.mlp.down_proj.weight"][:, 50:].any()
    after = plain_state(model)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_positions_are_get_rope_indexs(model: Qwen2_5_VLForConditionalGeneration, samples: list[Sample]) -> None:
    for one in samples:
        ids = torch.tensor([one.ids])
        grids = torch.tensor(one.grids) if one.grids else None
        expected, _ = model.model.get_rope_index(ids, (ids == IMAGE).int(), image_grid_thw=grids)
        assert (positions_of(one.ids, one.grids, IMAGE, 2) == expected[:, 0].numpy()).all()


def test_layout_is_the_one_transformers_computes() -> None:
    grids = ((1, 6, 10), (1, 16, 16), (2, 8, 4), (1, 18, 14))
    layout = vision_layout(grids, VisionShape(2, 4, 16), torch.device("cpu"))
    thw = torch.tensor(grids)
    index, offsets = get_vision_window_index(thw, 2, 112, 14)
    assert torch.equal(layout.order, index)
    assert torch.equal(layout.windows.offsets, offsets)
    positions = get_vision_position_ids(thw, 2).view(-1, 4, 2)[index].view(-1, 2)
    frequency = 1.0 / 10_000.0 ** (torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(layout.cos, (positions[:, :, None] * frequency).flatten(1).cos())
    assert layout.pictures.lengths == (60, 256, 32, 32, 252)


def test_only_labelled_tokens_are_predicted(samples: list[Sample]) -> None:
    packed = pack(samples, IMAGE, 2, length=160)
    together = [label for one in samples for label in (*one.labels[1:], -100)]
    assert packed.targets.tolist() == [label for label in together if label != -100]
    assert packed.predict_at.tolist() == [n for n, label in enumerate(together) if label != -100]
    assert sum(packed.lengths) == 160 == len(packed.ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grids": ()}, "more pictures than it holds"),
        ({"grids": ((1, 6, 8),)}, "more pictures than it holds"),
        ({"grids": ((1, 6, 12),)}, "needs 18 picture tokens"),
        ({"grids": ((1, 6, 10), (1, 4, 4))}, "1 pictures more"),
        ({"labels": [1]}, "labels"),
    ],
)
def test_a_sample_that_does_not_fit_its_pictures_is_refused(
    samples: list[Sample], change: dict[str, Any], message: str
) -> None:
    one = samples[0]
    values = {"ids": one.ids, "labels": one.labels, "pixels": one.pixels, "grids": one.grids, **change}
    with pytest.raises(GeofixError, match=message):
        pack([Sample(**values)], IMAGE, 2)


def test_bins_hold_every_sample_once_within_capacity() -> None:
    lengths = [5, 9, 3, 7, 2, 8, 1, 10]
    filled = bins(lengths, 10)
    assert sorted(index for one in filled for index in one) == list(range(8))
    assert all(sum(lengths[index] for index in one) <= 10 for one in filled)
    assert len(filled) == 5
    with pytest.raises(GeofixError, match="longer than the packed length"):
        bins([11], 10)


def test_flops_are_those_torch_counts(model: Qwen2_5_VLForConditionalGeneration, samples: list[Sample]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model.set_attn_implementation("eager")
    one = samples[0]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ids = torch.tensor([one.ids])
        model(input_ids=ids, pixel_values=one.pixels, image_grid_thw=torch.tensor(one.grids),
              mm_token_type_ids=(ids == IMAGE).int())  # fmt: skip
    n = len(one.ids)
    # torch counts eager attention without its causal half
    causal_half = 2 * 4.0 * 64 * (n * n - n * (n + 1) / 2)
    assert forward_flops(model.config, [n], one.grids, n) == pytest.approx(
        counter.get_total_flops() - causal_half, rel=0.01
    )


def test_a_tiny_model_is_not_compiled() -> None:
    tiny, large = torch.nn.Linear(100, 100), torch.nn.Linear(20_000, 20_000, device="meta")
    assert not is_worth_compiling(tiny, torch.device("cuda")) and is_worth_compiling(large, torch.device("cuda"))
    assert not is_worth_compiling(large, torch.device("cpu"))
