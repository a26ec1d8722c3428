"""A Qwen2.5-VL or Qwen3-VL of any size from random weights, with a tokenizer trained on the spot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from schemas.settings.train import TinySettings
from tasks.agent.render import chat_template
from tasks.imaging.processor import PROCESSORS, image_processor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HEAD_DIM = 64
VISION_HEAD_DIM = 32
EXPERTS, EXPERTS_A_TOKEN = 4, 2
QWEN3_TOWER = {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # as its checkpoints say
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
ROLES = "system\nuser\nassistant\n<tool_response>\n\n</tool_response>"  # what the chat template adds to the texts
# Words with their leading space, single digits (as Qwen splits numbers), tags and punctuation runs.
_PIECES = r"</?[a-z_]+>| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}<]+| ?<|\s+"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE with Qwen's special tokens. The same texts give the same tokenizer, in any order."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(set(texts)), trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=[token for token in SPECIAL_TOKENS if token not in ("<|im_end|>", "<|endoftext|>")],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build_processor(texts: Iterable[str], tiny: TinySettings, min_pixels: int, max_pixels: int) -> Any:
    """The tiny model's processor: tokenizer from `texts`, PIL image processor, no video."""
    tower = {} if tiny.family == "qwen2_5_vl" else QWEN3_TOWER
    return PROCESSORS[tiny.family](
        image_processor=image_processor(min_pixels, max_pixels, **tower),
        tokenizer=train_tokenizer([*texts, ROLES], tiny.vocabulary),
        chat_template=chat_template(),
    )


def build_model(processor: Any, tiny: TinySettings, seed: int) -> Any:
    """A model of the family with random weights, the same for the same seed."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = processor.tokenizer
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    heads = tiny.hidden // HEAD_DIM
    text: dict[str, Any] = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 32768,
        # Qwen's 0.02 is for a width of thousands; a narrow model starts too quiet with it and learns slowly
        "initializer_range": 0.06,
        # the sections of time, height and width share out half a head: they must sum to head_dim / 2
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [8, 12, 12]},
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "tie_word_embeddings": True,
    }
    vision: dict[str, Any] = {
        "depth": tiny.vision_layers,
        "hidden_size": tiny.vision_hidden,
        "intermediate_size": 2 * tiny.vision_hidden,
        "num_heads": tiny.vision_hidden // VISION_HEAD_DIM,
        "out_hidden_size": tiny.hidden,
    }
    if tiny.family == "qwen2_5_vl":
        vision["fullatt_block_indexes"] = list(range(tiny.vision_layers))
    else:
        text |= {"head_dim": HEAD_DIM}
        text["rope_parameters"] |= {"mrope_section": [12, 10, 10], "mrope_interleaved": True}
        # a table of 16 x 16 positions; the first block's states go to the first layer too
        vision |= {"num_position_embeddings": 256, "deepstack_visual_indexes": [0]}
    if tiny.family == "qwen3_vl_moe":
        text |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_A_TOKEN,
            "moe_intermediate_size": tiny.intermediate // EXPERTS_A_TOKEN,
        }
    config = AutoConfig.for_model(
        tiny.family,
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = AutoModelForImageTextToText.from_config(config)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    return model
