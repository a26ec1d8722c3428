"""Floating-point operations that one training step of a Qwen-VL needs: what model FLOPs utilization divides by.

Counted: matrix products (2 a weight and row) and attention (4 x width for each pair of query and key; causal attention
needs half of the pairs), times 3 for forward and backward. Not counted: recomputation, padding, element-wise work,
and the head for tokens that are not trained.
"""

from collections.abc import Sequence
from typing import Any

from tasks.train.fast.layout import picture_layout
from tasks.train.token_samples import Grid

# Operations a second in dense bf16, by the makers' datasheets.
PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


def peak_flops(device_name: str) -> float | None:
    """What a GPU of this name can do; None: not known, so no utilization is reported."""
    return next((peak for name, peak in PEAKS.items() if name in device_name.replace("-", " ").split()), None)


def forward_flops(config: Any, lengths: Sequence[int], grids: Sequence[Grid], trained: int) -> float:
    """Operations of one forward pass: sample lengths in tokens, pictures in patches, tokens through the head."""
    text, vision = config.text_config, config.vision_config
    width = text.hidden_size
    head_dim = getattr(text, "head_dim", None) or width // text.num_attention_heads
    query_width, key_width = head_dim * text.num_attention_heads, head_dim * text.num_key_value_heads
    experts = getattr(text, "num_experts", 0)
    inner_width = text.num_experts_per_tok * text.moe_intermediate_size if experts else text.intermediate_size
    weights = 2 * width * query_width + 2 * width * key_width + 3 * width * inner_width + width * experts
    total = 2.0 * weights * text.num_hidden_layers * sum(lengths)
    total += sum(4.0 * query_width * n * (n + 1) / 2 for n in lengths) * text.num_hidden_layers
    total += 2.0 * width * text.vocab_size * trained

    merge, inner = vision.spatial_merge_size, vision.hidden_size
    is_windowed = hasattr(vision, "window_size")  # Qwen2.5-VL; Qwen3-VL attends over whole pictures, without a gate
    window = vision.window_size // merge // vision.patch_size if is_windowed else 0
    full = len(vision.fullatt_block_indexes) if is_windowed else vision.depth
    matrices = 3 if is_windowed else 2
    mergers = 1 + len(getattr(vision, "deepstack_visual_indexes", ()))
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    merged = inner * merge**2
    for frames, rows, columns in grids:
        patches = rows * columns
        block = 2.0 * patches * (4 * inner * inner + matrices * inner * vision.intermediate_size)
        whole = 4.0 * inner * patches**2
        lengths_of = picture_layout(rows, columns, merge, window)[2] if is_windowed else []
        parts = 4.0 * inner * sum(length**2 for length in lengths_of)
        ends = 2.0 * patches * patch * inner
        ends += mergers * 2.0 * patches / merge**2 * (merged * merged + merged * width)
        total += frames * (vision.depth * block + full * whole + (vision.depth - full) * parts + ends)
    return float(total)


def step_flops(config: Any, lengths: Sequence[int], grids: Sequence[Grid], trained: int) -> float:
    """Operations of forward and backward."""
    return 3 * forward_flops(config, lengths, grids, trained)
