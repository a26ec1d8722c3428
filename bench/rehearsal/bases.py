"""A model hub's cache with the recipes' own models in it: their architectures, small, with random weights."""

import json
from pathlib import Path
from typing import Any

from infra.offline.facts import countries
from schemas.settings.train import TinySettings
from tasks.recipes.recipe import RECIPES

TINY = TinySettings(vocabulary=2048)
REVISION = "0" * 40
SHARD = "400KB"
# Qwen2.5-VL's own knows no tools, unlike the one that geofix trains with.
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def fill_cache(home: Path) -> dict[str, int]:
    """Model name -> files of weights, after they were written as `hf download` would have."""
    from tasks.train.tiny import build_model, build_processor

    texts = [text for one in RECIPES.values() for text in (one.prompt.system, one.prompt.question)]
    texts += [country.name for country in countries().values()]
    for name, family in (
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_moe"),
    ):
        folder = _snapshot(home, name)
        tiny = TINY.model_copy(update={"family": family})
        processor: Any = build_processor(texts, tiny, 3136, 12_845_056)
        processor.chat_template = TEMPLATE
        processor.save_pretrained(folder)
        build_model(processor, tiny, seed=0).bfloat16().save_pretrained(folder, max_shard_size=SHARD)
    _encoder(_snapshot(home, "stabilityai/sd-vae-ft-mse"))
    hub = home / "hub"
    return {one.name: len(list(one.rglob("*.safetensors"))) for one in sorted(hub.iterdir())}


def _snapshot(home: Path, name: str) -> Path:
    model = home / "hub" / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    (model / "blobs").mkdir()
    folder = model / "snapshots" / REVISION
    folder.mkdir(parents=True)
    return folder


def _encoder(folder: Path) -> None:
    from safetensors.torch import save_file

    from tasks.recipes.smilegeo.encoder import CONFIG, WEIGHTS, EncoderSize, PictureEncoder

    size = EncoderSize()
    save_file(PictureEncoder(size).state_dict(), folder / WEIGHTS)
    sizes = {"block_out_channels": size.block_out_channels, "layers_per_block": 1, "norm_num_groups": 4}
    (folder / CONFIG).write_text(json.dumps({**sizes, "latent_channels": 4, "scaling_factor": 0.18215}))
