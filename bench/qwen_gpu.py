"""The shapes of Qwen2.5-VL-7B and Qwen3-VL-8B with random weights, and random samples, for the GPU benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from schemas.settings.train import TinySettings
from tasks.train.encoding import Encoder, Pictures
from tasks.train.tiny import SPECIAL_TOKENS, build_processor
from tasks.train.token_samples import IGNORED, Sample

NOT_RUN = 77  # the exit code of a benchmark that could not be run here, as automake's tests use it
PEAK_FLOPS = 989e12  # dense bf16 of one H100 or H200, by NVIDIA's datasheet
GRID = (1, 102, 100)  # 1428 x 1400 pixels: 2.0 Mpx, 2,550 text tokens
IMAGE, VISION_START, VISION_END, PAD = 151_655, 151_652, 151_653, 151_643


def no_gpu() -> bool:
    """Say in one line that there is no GPU to measure."""
    if torch.cuda.is_available():
        return False
    print("   not run: no CUDA GPU on this machine (exit code 77)", flush=True)
    return True


def config_7b() -> Any:
    """Qwen/Qwen2.5-VL-7B-Instruct's published sizes."""
    from transformers import Qwen2_5_VLConfig

    text = {
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128_000,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "bos_token_id": PAD,
        "eos_token_id": 151_645,
        "pad_token_id": PAD,
    }
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=151_656,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=False,
    )


def config_8b() -> Any:
    """Qwen/Qwen3-VL-8B-Instruct's published sizes."""
    from transformers import Qwen3VLConfig

    text = {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
        "bos_token_id": PAD,
        "eos_token_id": 151_645,
        "pad_token_id": PAD,
    }
    vision = {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "out_hidden_size": 4096,
        "patch_size": 16,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=151_656,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=False,
    )


@dataclass(frozen=True)
class Shape:
    """A model to measure: its configuration, and the patches of a picture of 2 megapixels."""

    config: Callable[[], Any]
    grid: tuple[int, int, int]
    patch: int

    @property
    def patch_values(self) -> int:
        return 3 * 2 * self.patch**2


SHAPES = {
    "qwen2.5-vl-7b": Shape(config_7b, GRID, 14),
    "qwen3-vl-8b": Shape(config_8b, (1, 88, 88), 16),  # 1408 x 1408 pixels, 1,936 text tokens
}


def random_model(config: Any, seed: int = 0) -> Any:
    """bf16 weights, made on the GPU, the same for the same seed."""
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    finally:
        torch.set_default_dtype(default)
    return model


def random_sample(
    seed: int, text: int = 512, prompt: int = 128, grid: tuple[int, int, int] = GRID, values: int = 1176,
    pictures: int = 1,
) -> Sample:  # fmt: skip
    """Pictures and `text` tokens with their marks among them; all but the first `prompt` are the assistant's."""
    generator = torch.Generator().manual_seed(seed)

    def words(count: int) -> list[int]:
        return torch.randint(100, 150_000, (count,), generator=generator).tolist()

    patches = grid[0] * grid[1] * grid[2]
    shown = [VISION_START, *[IMAGE] * (patches // 4), VISION_END] * pictures
    ids = [*words(8), *shown, *words(prompt - 8 - 2 * pictures)]
    answer = words(text - prompt)
    pixels = torch.randn(pictures * patches, values, generator=generator).to(torch.bfloat16)
    return Sample([*ids, *answer], [IGNORED] * len(ids) + answer, pixels, (grid,) * pictures)


def plain_batch(samples: list[Sample], device: str = "cuda") -> dict[str, torch.Tensor]:
    """What transformers' own forward takes; all samples are of one length."""
    ids = torch.tensor([list(one.ids) for one in samples], device=device)
    pixels = [one.pixels for one in samples if one.pixels is not None]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.tensor([list(one.labels) for one in samples], device=device),
        "pixel_values": torch.cat(pixels).to(device),
        "image_grid_thw": torch.tensor([grid for one in samples for grid in one.grids], device=device),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }


def model_with_tokenizer(
    shape: str, texts: list[str], tiny: TinySettings, store: Any, min_pixels: int, max_pixels: int
) -> tuple[Any, Encoder]:
    """A model of a shape whose special tokens are those of a tokenizer made of `texts`, and what encodes for it."""
    processor = build_processor(texts, tiny, min_pixels, max_pixels)
    config = SHAPES[shape].config()
    marks = dict(zip(("vision_start", "vision_end", "image", "video"), SPECIAL_TOKENS[3:], strict=True))
    for name, token in marks.items():
        setattr(config, f"{name}_token_id", processor.tokenizer.convert_tokens_to_ids(token))
    config.text_config.eos_token_id = processor.tokenizer.eos_token_id
    config.text_config.pad_token_id = config.text_config.bos_token_id = processor.tokenizer.pad_token_id
    return random_model(config), Encoder(processor, Pictures(store, min_pixels, max_pixels))
