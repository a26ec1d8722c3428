"""What the trainers are fed: the loss is on the assistant's tokens alone, and pictures take the tokens they should."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl.chat_template_utils import get_training_chat_template
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from schemas.messages import image_reference, parts_of
from schemas.settings.train import TinySettings, TrainSettings
from tasks.agent.render import render_text, training_messages
from tasks.imaging.processor import ImageOnlyProcessor, load_processor
from tasks.lake import Lake
from tasks.recipes.spotagent import RECIPE
from tasks.runtime.stage import open_inputs
from tasks.train.encoding import Encoder, Pictures, conversation_texts
from tasks.train.samples import STAGE, compute
from tasks.train.tiny import build_model, build_processor, train_tokenizer
from tasks.train.token_samples import IGNORED

# Words, and the marks by which turns are told apart, also broken ones.
PIECES = st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_st", "art|>", "user", "\n", " ", "a street", "é", '"', "{"]),
    max_size=8,
).map("".join)


@pytest.fixture
def samples(lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings]) -> pl.DataFrame:
    filled(lake)
    return compute(open_inputs(STAGE, lake), settings())[0]


@pytest.fixture
def processor(samples: pl.DataFrame, settings: Callable[..., TrainSettings]) -> ImageOnlyProcessor:
    texts = [text for one in samples["messages_json"] for text in conversation_texts(one)]
    small = settings()
    return build_processor(texts, small.tiny, small.image_min_pixels, small.image_max_pixels)


@pytest.fixture
def encoder(lake: Lake, processor: ImageOnlyProcessor, settings: Callable[..., TrainSettings]) -> Encoder:
    small = settings()
    return Encoder(processor, Pictures(lake.images, small.image_min_pixels, small.image_max_pixels))


def with_pictures(messages_json: str, encoder: Encoder) -> list[dict[str, Any]]:
    """The messages as TRL's collator takes them."""
    found = []
    for message in json.loads(messages_json):
        content = []
        for part in parts_of(message["content"]):
            reference = image_reference(part)
            content.append({"type": "image", "image": encoder._pictures.open(*reference)} if reference else part)
        found.append({"role": message["role"], "content": content})
    return found


def test_ids_labels_and_patches_are_those_of_trls_collator(
    samples: pl.DataFrame, encoder: Encoder, processor: ImageOnlyProcessor
) -> None:
    collate = DataCollatorForVisionLanguageModeling(
        processor, assistant_only_loss=True, chat_template=get_training_chat_template(processor)
    )
    for row in samples.filter(pl.col("training_stage") != "grpo").to_dicts():
        batch = collate([{"messages": with_pictures(row["messages_json"], encoder), "images": []}])
        sample = encoder.conversation(row["messages_json"])
        assert list(sample.ids) == batch["input_ids"][0].tolist()
        assert list(sample.labels) == batch["labels"][0].tolist()
        assert sample.pixels is not None and sample.pixels.equal(batch["pixel_values"])
        assert [list(grid) for grid in sample.grids] == batch["image_grid_thw"].tolist()


def test_a_prompt_read_turn_by_turn_has_the_tokens_of_the_whole(
    processor: ImageOnlyProcessor, encoder: Encoder
) -> None:
    @given(st.lists(PIECES, min_size=1, max_size=6), st.booleans())
    def check(texts: list[str], has_tools: bool) -> None:
        roles = ("user", "assistant")
        messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
        tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}] if has_tools else None
        whole = processor.tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=processor.chat_template, tokenize=True, return_dict=True,
            add_generation_prompt=True,
        )  # fmt: skip
        for _ in range(2):  # the second time from what is kept
            assert list(encoder.prompt(messages, tools).ids) == list(whole["input_ids"])

    check()


def test_labels_are_the_assistants_tokens_and_no_others(
    samples: pl.DataFrame, encoder: Encoder, processor: ImageOnlyProcessor
) -> None:
    decode = processor.tokenizer.decode
    for row in samples.filter(pl.col("training_stage") != "grpo").to_dicts():
        sample = encoder.conversation(row["messages_json"])
        # The runs of trained tokens, decoded, are the assistant's turns to the letter, each with its end mark.
        runs: list[list[int]] = []
        untrained = []
        for place, (token, label) in enumerate(zip(sample.ids, sample.labels, strict=True)):
            if label == IGNORED:
                untrained.append(token)
                continue
            assert label == token
            if sample.labels[place - 1] == IGNORED:
                runs.append([])
            runs[-1].append(token)
        messages = json.loads(row["messages_json"])
        spoken = [message["content"] for message in messages if message["role"] == "assistant"]
        assert [decode(run) for run in runs] == [text + "<|im_end|>\n" for text in spoken]
        assert "<|im_end|>\n<|im_start|>assistant\n" in decode(untrained), "the header is given, not learned"


def test_a_prompt_is_what_the_processor_makes_of_it(
    samples: pl.DataFrame, encoder: Encoder, processor: ImageOnlyProcessor
) -> None:
    row = samples.filter(pl.col("training_stage") == "grpo").row(0, named=True)
    expected = processor.apply_chat_template(
        with_pictures(row["messages_json"], encoder),
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
    )
    prompt = encoder.prompt(row["messages_json"])
    assert list(prompt.ids) == expected["input_ids"][0].tolist()
    assert set(prompt.labels) == {IGNORED}


def test_a_picture_takes_as_many_tokens_as_its_grid(
    samples: pl.DataFrame, encoder: Encoder, processor: ImageOnlyProcessor, settings: Callable[..., TrainSettings]
) -> None:
    small = settings()
    row = samples.filter(pl.col("training_stage") == "cold_start").row(0, named=True)
    sample = encoder.conversation(row["messages_json"])
    assert len(sample.grids) == 2, "the picture and the region zoomed into"
    placeholders = list(sample.ids).count(processor.image_token_id)
    assert placeholders == sum(t * h * w for t, h, w in sample.grids) // 4
    assert sample.pixels is not None and sample.pixels.shape[0] == 4 * placeholders
    for _, height, width in sample.grids:
        assert small.image_min_pixels <= height * 14 * width * 14 <= small.image_max_pixels


def test_tagged_text_is_what_the_template_makes_of_the_openai_messages(
    lake: Lake, samples: pl.DataFrame, processor: ImageOnlyProcessor
) -> None:
    stored = json.loads(lake.read("trajectories")["messages_json"][0])
    tools = RECIPE.prompt.tool_schemas()
    expected = processor.apply_chat_template(stored, tools=tools, tokenize=False)
    assert processor.apply_chat_template(training_messages(stored, tools), tokenize=False) == expected
    assert render_text(stored, tools) == render_text(training_messages(stored, tools)) == expected
    assert "<tools>" in expected and "<tool_call>" in expected and "<tool_response>" in expected


def test_the_tokenizer_is_the_same_for_the_same_texts_in_any_order() -> None:
    texts = ["Where was this taken?", "Latitude: 48.8566", "Улица Ленина", "東京 <answer>", "Latitude: -33.9"]
    one, other = train_tokenizer(texts, 400), train_tokenizer([*reversed(texts), texts[0]], 400)
    assert one.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()
    for text in [*texts, "never seen: ñandú 🦘 \n\t<think>"]:
        assert one.decode(one.encode(text)) == text
    assert len(one.encode("48.8566")) == 7, "numbers are read digit by digit"


def test_a_tiny_model_is_the_same_for_the_same_seed_and_survives_saving(
    processor: ImageOnlyProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = TinySettings(vocabulary=400)
    models = [build_model(processor, tiny, seed) for seed in (3, 3, 4)]
    weights = [next(iter(model.parameters())) for model in models]
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])
    text = models[0].config.text_config
    assert text.hidden_size // text.num_attention_heads == 64
    processor.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "processor_config.json").read_text())["processor_class"] == "Qwen2_5_VLProcessor"
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    opened = AutoProcessor.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(opened).__module__.startswith("transformers_modules."), "without torchvision, from the folder alone"
    assert type(opened).__name__ == "Qwen2_5_VLProcessor", "the name that verl looks at"
    models[0].save_pretrained(tmp_path)
    reopened = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?"}]}]
    text = opened.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    picture = Image.effect_noise((120, 80), 90).convert("RGB")
    inputs = opened(text=[text], images=[picture], return_tensors="pt")
    ours = processor(text=[text], images=[picture], return_tensors="pt")
    assert inputs.keys() == ours.keys() and all(torch.equal(inputs[name], ours[name]) for name in ours)
    with torch.no_grad():
        assert torch.equal(reopened(**inputs).logits, models[0].eval()(**inputs).logits), (
            "what is served is what it was"
        )
    again = load_processor(str(tmp_path))
    assert again.image_processor.size == processor.image_processor.size
    assert again.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
