"""Tiny LLaVA and Idefics3 checkpoints from random weights: models without a packed path, for tests.

Both have an image processor that does without torchvision. LLaVA's template is one of a line for each turn, and marks
no end; Idefics3's is its own, as TRL ships it, and its pictures become a text of tiles and marks.
"""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.train.tiny import train_tokenizer

LLAVA_TEMPLATE = """\
{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}\
{% for part in m['content'] %}{% if part['type'] == 'image' %}<|image_pad|>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
TEXTS = ("Where was this picture taken? Latitude: 1.5",)
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny_llava(folder: Path, texts: Iterable[str] = TEXTS, template: str = LLAVA_TEMPLATE) -> Path:
    """LLaVA: every picture is 56 x 56 pixels and 16 tokens."""
    import torch
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, Qwen2Config
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    tokenizer = train_tokenizer(texts, 400)
    seen = CLIPVisionConfig(**SIZES, image_size=56, patch_size=14)
    text = Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, initializer_range=0.1, **SIZES,
    )  # fmt: skip
    picture = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    config = LlavaConfig(vision_config=seen, text_config=text, image_token_index=picture, vision_feature_layer=-1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlavaForConditionalGeneration(config).save_pretrained(folder)
    side = {"height": 56, "width": 56}
    LlavaProcessor(
        LlavaImageProcessorPil(size=side, crop_size=side),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<|image_pad|>",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(folder)
    return folder


def tiny_idefics3(folder: Path, texts: Iterable[str] = TEXTS) -> Path:
    """Idefics3: a picture is cut into tiles of 56 x 56 pixels, with the whole of it last."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.submodule_search_locations
    template = Path(spec.submodule_search_locations[0], "chat_templates", "idefics3.jinja").read_text(encoding="utf-8")
    tokenizer = train_tokenizer(texts, 400)
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["<image>", "<fake_token_around_image>", "<global-img>", "<|begin_of_text|>", "<end_of_utterance>", *rows]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.bos_token, tokenizer.eos_token = "<|begin_of_text|>", "<end_of_utterance>"
    text = {
        "model_type": "llama", "vocab_size": len(tokenizer), "num_key_value_heads": 2, "initializer_range": 0.1,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id, **SIZES,
    }  # fmt: skip
    config = Idefics3Config(
        vision_config={**SIZES, "image_size": 56, "patch_size": 14}, text_config=text, scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    Idefics3Processor(
        Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56}),
        tokenizer,
        image_seq_len=4,
        chat_template=template,
    ).save_pretrained(folder)
    return folder
