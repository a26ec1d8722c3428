"""Losses and gradients of the packed path against plain transformers on a CPU: what is rounding, and what is not.

A deep, narrow Qwen2.5-VL (windows, padded vision MLP, grouped heads, pictures of several grids, mrope positions) is
trained on eight samples until their loss is near 0.08, where `train_gpu` compares losses. Then the same weights are
computed with in float32 and in bf16, by plain transformers (each sample alone, and all of them padded into one batch)
and by the packed path (several packings). In float32 every pair must agree to 1e-5; in bf16 the distance of
transformers to its own float32 is the yardstick of rounding.
"""

from __future__ import annotations

import copy
import itertools
import sys
from typing import Any

import torch

from bench.goals import Goal, judge
from tasks.train.fast.families import fast_model
from tasks.train.fast.packing import IGNORED, Sample, pack
from tasks.train.fast.padding import pad_vision

IMAGE, START, END, PAD, VOCABULARY = 5, 7, 8, 0, 512
GRIDS = [((1, 16, 12),), (), ((1, 4, 4), (1, 10, 6)), ((1, 18, 14),)]
WANTED_LOSS = 0.08
STEPS = 400


def deep_model(layers: int = 12) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 2, "initializer_range": 0.06, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        "pad_token_id": PAD, "bos_token_id": PAD, "eos_token_id": 1, "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "depth": 8, "hidden_size": 64, "intermediate_size": 171, "num_heads": 4, "out_hidden_size": 128,
        "window_size": 112, "fullatt_block_indexes": [3, 7], "initializer_range": 0.06,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=6, vision_start_token_id=START,
        vision_end_token_id=END, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config)


def samples_of(count: int = 8) -> list[Sample]:
    """Text, pictures, text, an answer; the pixels are whole bf16 numbers, so both types read the same picture."""
    found = []
    for seed, grids in zip(range(count), itertools.cycle(GRIDS), strict=False):
        generator = torch.Generator().manual_seed(seed)

        def words(n: int, generator: torch.Generator = generator) -> list[int]:
            return torch.randint(10, VOCABULARY, (n,), generator=generator).tolist()

        ids = words(8 + seed)
        for _, rows, columns in grids:
            ids += [START, *[IMAGE] * (rows * columns // 4), END, *words(3)]
        answer = words(16 + 3 * seed)
        patches = sum(rows * columns for _, rows, columns in grids)
        pixels = torch.randn(patches, 1176, generator=generator).to(torch.bfloat16).float() if patches else None
        found.append(Sample([*ids, *answer], [IGNORED] * len(ids) + answer, pixels, grids))
    return found


def plain_inputs(samples: list[Sample], kind: torch.dtype) -> dict[str, torch.Tensor]:
    """Samples padded on the right into one batch, as transformers takes them."""
    longest = max(len(one.ids) for one in samples)

    def padded(values: Any, fill: int) -> list[int]:
        return [*values, *[fill] * (longest - len(values))]

    ids = torch.tensor([padded(one.ids, PAD) for one in samples])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.tensor([padded([1] * len(one.ids), 0) for one in samples]),
        "labels": torch.tensor([padded(one.labels, IGNORED) for one in samples]),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }
    pixels = [one.pixels for one in samples if one.pixels is not None]
    if pixels:
        inputs["pixel_values"] = torch.cat(pixels).to(kind)
        inputs["image_grid_thw"] = torch.tensor([grid for one in samples for grid in one.grids])
    return inputs


def trained_tokens(samples: list[Sample]) -> int:
    return sum(label != IGNORED for one in samples for label in one.labels[1:])


def plain_loss(model: Any, batches: list[list[Sample]]) -> torch.Tensor:
    """Mean over all trained tokens; the logits in float32 for the loss, as transformers has them."""
    kind = model.lm_head.weight.dtype
    total = torch.zeros(())
    for samples in batches:
        total = total + model(**plain_inputs(samples, kind), use_cache=False).loss.float() * trained_tokens(samples)
    return total / sum(trained_tokens(samples) for samples in batches)


def packed_loss(model: Any, batches: list[list[Sample]], wide: bool = False) -> torch.Tensor:
    fast = fast_model(model, wide=wide)
    divisor = sum(trained_tokens(samples) for samples in batches)
    total = torch.zeros(())
    for samples in batches:
        length = -(-sum(len(one.ids) for one in samples) // 64) * 64  # filled up, as on a GPU
        total = total + fast.loss(pack(samples, IMAGE, 2, length), divisor)
    return total


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    """All gradients as one vector, those of the vision MLP's padding cut off."""
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    width = model.config.vision_config.intermediate_size
    parts = []
    for name, p in model.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        if "visual.blocks" in name and (".gate_proj." in name or ".up_proj." in name):
            grad = grad[:width]
        elif "visual.blocks" in name and name.endswith(".mlp.down_proj.weight"):
            grad = grad[:, :width]
        parts.append(grad.flatten().double())
    return torch.cat(parts)


def trained(samples: list[Sample]) -> Any:
    """Weights with which the samples' loss is near 0.08, as bf16 numbers in float32."""
    model = deep_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    fast = fast_model(model)
    batch = pack(samples, IMAGE, 2)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
        loss = fast.loss(batch)
        if loss.item() < WANTED_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()
    return model.eval()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def measure() -> dict[str, float]:
    """Every figure by name."""
    torch.set_num_threads(1)
    samples = samples_of()
    model = trained(samples)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    packings = [[samples], [[one] for one in samples], [samples[::2], samples[1::2]], [samples[:3], samples[3:]]]
    alone, together = packings[1], packings[0]
    found: dict[str, float] = {}
    exact = plain_loss(model, alone)
    exact_gradient = gradient(model, exact)
    found["loss"] = exact.item()
    found["float32: transformers, padded batch against single samples"] = abs(
        plain_loss(model, together).item() / exact.item() - 1
    )
    fused = copy.deepcopy(model)
    pad_vision(fused)
    losses, gradients = [], []
    for batches in packings:
        loss = packed_loss(fused, batches)
        losses.append(abs(loss.item() / exact.item() - 1))
        gradients.append(relative(gradient(fused, loss), exact_gradient))
    found["float32: packed against transformers, loss"] = max(losses)
    found["float32: packed against transformers, gradient"] = max(gradients)

    plain = [plain_loss(narrow, batches) for batches in (alone, together)]
    found["bf16: transformers against its float32, loss"] = max(abs(one.item() / exact.item() - 1) for one in plain)
    found["bf16: transformers, padded batch against single samples, loss"] = abs(plain[1].item() / plain[0].item() - 1)
    found["bf16: transformers against its float32, gradient"] = relative(gradient(narrow, plain[0]), exact_gradient)
    fused = copy.deepcopy(narrow)
    pad_vision(fused)
    for name, wide in (("", False), (" with wide sums", True)):
        packed = [packed_loss(fused, batches, wide) for batches in packings]
        found[f"bf16: packed{name} against float32, loss"] = max(abs(one.item() / exact.item() - 1) for one in packed)
        found[f"bf16: packed{name} against transformers in bf16, loss"] = max(
            abs(one.item() / plain[0].item() - 1) for one in packed
        )
        found[f"bf16: packed{name} against float32, gradient"] = relative(gradient(fused, packed[0]), exact_gradient)
    return found


def main(arguments: list[str] | None = None) -> int:
    found = measure()
    for name, value in found.items():
        print(f"   {name}: {value:.2e}", flush=True)
    return judge(
        [
            Goal("float32, loss", found["float32: packed against transformers, loss"], at_most=1e-5),
            Goal("float32, gradient", found["float32: packed against transformers, gradient"], at_most=1e-5),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
