"""Qwen3-VL's packed path against transformers' own forward: losses, gradients, positions; dense and with experts."""

from typing import Any

import pytest
import torch
from transformers import (
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from schemas.errors import GeofixError
from tasks.train.fast.families import fast_model
from tasks.train.fast.flops import forward_flops
from tasks.train.fast.packing import pack, positions_of
from tasks.train.fast.qwen3_vl import learned_positions
from tasks.train.rollouts.engine import RolloutEngine
from tasks.train.rollouts.sampling import Sampling
from tasks.train.token_samples import IGNORED, Sample

IMAGE, PAD, END, VOCABULARY = 5, 0, 1, 96
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "initializer_range": 0.1,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 4, 4], "mrope_interleaved": True
    },
    "pad_token_id": PAD, "bos_token_id": PAD, "eos_token_id": END, "tie_word_embeddings": False,
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 16,
    "num_position_embeddings": 36, "deepstack_visual_indexes": [1, 2], "initializer_range": 0.1,
}  # fmt: skip
IDS = {"image_token_id": IMAGE, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}


def tiny(experts: bool = False) -> Any:
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if experts:
            text = {**TEXT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
            config: Any = Qwen3VLMoeConfig(text_config=text, vision_config=VISION, **IDS)
            model: Any = Qwen3VLMoeForConditionalGeneration(config)
        else:
            model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=TEXT, vision_config=VISION, **IDS))
        for name, parameter in model.named_parameters():  # biases and norms that do nothing would hide mistakes
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
            assert parameter.requires_grad, name
    return model.eval()


def sample(seed: int, grids: tuple[tuple[int, int, int], ...], text: int = 6) -> Sample:
    generator = torch.Generator().manual_seed(seed)

    def words(count: int) -> list[int]:
        return torch.randint(10, VOCABULARY, (count,), generator=generator).tolist()

    ids = words(text)
    for _, rows, columns in grids:
        ids += [7, *[IMAGE] * (rows * columns // 4), 8, *words(2)]
    prompt = len(ids)
    ids += words(text)
    patches = sum(rows * columns for _, rows, columns in grids)
    pixels = torch.randn(patches, 3 * 2 * 16 * 16, generator=generator) if grids else None
    return Sample(ids, [IGNORED] * prompt + ids[prompt:], pixels, grids)


SAMPLES = [sample(1, ((1, 6, 10),)), sample(2, (), 9), sample(3, ((1, 4, 4), (1, 10, 6)))]


def plain_inputs(one: Sample) -> dict[str, torch.Tensor]:
    ids = torch.tensor([one.ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if one.pixels is not None:
        pictures = {"pixel_values": one.pixels, "image_grid_thw": torch.tensor(one.grids)}
        inputs |= {**pictures, "mm_token_type_ids": (ids == IMAGE).int()}
    return inputs


def plain_loss(model: Any) -> torch.Tensor:
    total, count = torch.zeros(()), 0
    for one in SAMPLES:
        logits = model(**plain_inputs(one)).logits[0, :-1]
        labels = torch.tensor(one.labels[1:])
        total = total + torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        count += int((labels != IGNORED).sum())
    return total / count


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_packed_loss_and_gradients_are_those_of_transformers(experts: bool, checkpointed: bool) -> None:
    model = tiny(experts)
    loss = plain_loss(model)
    expected = gradients(model, loss)
    fast = fast_model(model, checkpoint_vision=checkpointed, checkpoint_text=checkpointed)
    packed = fast.loss(pack(SAMPLES, IMAGE, 2, length=160))
    assert packed.item() == pytest.approx(loss.item(), abs=1e-5)
    found = gradients(model, packed)
    assert found.keys() == expected.keys()
    assert any("deepstack" in name for name in found) and any("pos_embed" in name for name in found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_positions_and_their_learned_table_are_those_of_transformers() -> None:
    model = tiny()
    for one in SAMPLES:
        ids = torch.tensor([one.ids])
        grids = torch.tensor(one.grids) if one.grids else None
        expected, _ = model.model.get_rope_index(ids, (ids == IMAGE).int(), image_grid_thw=grids)
        assert (positions_of(one.ids, one.grids, IMAGE, 2) == expected[:, 0].numpy()).all()
    grids = ((1, 6, 10), (1, 16, 4), (1, 2, 2))
    table = torch.randn(36, 8)
    index, share = learned_positions(grids, 6, 2, torch.device("cpu"))
    theirs, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor(grids), num_grid_per_side=6, mode="bilinear", align_corners=True, spatial_merge_size=2, kwargs={}
    )
    torch.testing.assert_close((table[index] * share[..., None]).sum(1), (table[theirs] * weights[..., None]).sum(1))


@pytest.mark.parametrize("experts", [False, True])
def test_greedy_rollouts_are_those_of_generate(experts: bool) -> None:
    model = tiny(experts)
    engine = RolloutEngine(fast_model(model), 2, 2, 64, 6, [END], Sampling(temperature=0))
    for number, rollouts in engine.generate(SAMPLES):
        one = SAMPLES[number]
        ids = model.generate(**plain_inputs(one), max_new_tokens=6, do_sample=False, eos_token_id=END, pad_token_id=PAD)
        expected = ids[0, len(one.ids) :].tolist()
        assert [rollout.ids for rollout in rollouts] == [expected, expected]


def test_operations_are_counted_as_torch_counts_them() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny()
    model.set_attn_implementation("eager")
    one = sample(4, ((1, 6, 10),), 8)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**plain_inputs(one))
    counted = counter.get_total_flops()
    # torch counts whole, not causal, attention and the head for every token
    extra = 3 * 4.0 * 4 * 24 * len(one.ids) * (len(one.ids) - 1) / 2
    ours = forward_flops(model.config, [len(one.ids)], one.grids, len(one.ids)) + extra
    assert ours == pytest.approx(counted, rel=0.02)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    class Other:
        class config:
            model_type = "llava"

    with pytest.raises(GeofixError, match=r"'llava'.*qwen3_vl"):
        fast_model(Other())
