"""What the trainers are fed: the loss is on the assistant's tokens alone, and pictures take the tokens they should."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from trl.chat_template_utils import get_training_chat_template
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from schemas.settings.train import TinySettings, TrainSettings
from tasks.agent.tagged import render
from tasks.imaging.processor import ImageOnlyProcessor, load_processor
from tasks.lake import Lake
from tasks.runtime.stage import open_inputs
from tasks.train.dataset import Pictures, conversations, texts_of
from tasks.train.samples import STAGE, compute
from tasks.train.tiny import build_model, build_processor, train_tokenizer

IGNORED = -100


@pytest.fixture
def samples(lake: Lake, filled: Callable[..., str], settings: Callable[..., TrainSettings]) -> pl.DataFrame:
    filled(lake)
    return compute(open_inputs(STAGE, lake), settings())[0]


@pytest.fixture
def processor(samples: pl.DataFrame, settings: Callable[..., TrainSettings]) -> ImageOnlyProcessor:
    texts = [text for one in samples["messages_json"] for text in texts_of(one)]
    small = settings()
    return build_processor(texts, small.tiny, small.image_min_pixels, small.image_max_pixels)


def test_labels_are_the_assistants_tokens_and_no_others(
    samples: pl.DataFrame, lake: Lake, processor: ImageOnlyProcessor, settings: Callable[..., TrainSettings]
) -> None:
    small = settings()
    rows = samples.filter(pl.col("training_stage") != "grpo").to_dicts()
    pictures = Pictures(lake.images, small.image_min_pixels, small.image_max_pixels)
    collate = DataCollatorForVisionLanguageModeling(
        processor, assistant_only_loss=True, chat_template=get_training_chat_template(processor)
    )
    batch = collate([conversations(rows, pictures)[n] for n in range(len(rows))])
    decode = processor.tokenizer.decode
    for row, ids, labels, attended in zip(
        rows, batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True
    ):
        trained = labels != IGNORED
        assert (ids[trained] == labels[trained]).all()
        assert not trained[attended == 0].any(), "padding is not trained"
        # The runs of trained tokens, decoded, are the assistant's turns to the letter, each with its end mark.
        runs: list[list[int]] = []
        for position, is_trained in enumerate(trained.tolist()):
            if is_trained:
                if position == 0 or not trained[position - 1]:
                    runs.append([])
                runs[-1].append(int(ids[position]))
        messages = json.loads(row["messages_json"])
        spoken = [message["content"] for message in messages if message["role"] == "assistant"]
        assert [decode(run) for run in runs] == [text + "<|im_end|>\n" for text in spoken]
        untrained = decode([int(i) for i, t, a in zip(ids, trained, attended, strict=True) if a and not t])
        assert "<|im_end|>\n<|im_start|>assistant\n" in untrained, "the turn's header is given, not learned"


def test_a_picture_takes_as_many_tokens_as_its_grid(
    samples: pl.DataFrame, lake: Lake, processor: ImageOnlyProcessor, settings: Callable[..., TrainSettings]
) -> None:
    small = settings()
    row = samples.filter(pl.col("training_stage") == "cold_start").to_dicts()[:1]
    pictures = Pictures(lake.images, small.image_min_pixels, small.image_max_pixels)
    batch = DataCollatorForVisionLanguageModeling(processor)([conversations(row, pictures)[0]])
    assert batch["image_grid_thw"].shape[0] == 2, "the picture and the region zoomed into"
    placeholders = int((batch["input_ids"] == processor.image_token_id).sum())
    assert placeholders == int(batch["image_grid_thw"].prod(dim=1).sum()) // 4
    assert batch["pixel_values"].shape[0] == 4 * placeholders
    for _, height, width in batch["image_grid_thw"].tolist():
        assert small.image_min_pixels <= height * 14 * width * 14 <= small.image_max_pixels


def test_tagged_text_is_what_the_template_makes_of_the_openai_messages(
    lake: Lake, samples: pl.DataFrame, processor: ImageOnlyProcessor
) -> None:
    stored = json.loads(lake.read("trajectories")["messages_json"][0])
    expected = processor.apply_chat_template(stored, tokenize=False)
    assert processor.apply_chat_template(render(stored), tokenize=False) == expected
    assert "<tool_call>" in expected and "<tool_response>" in expected


def test_the_tokenizer_is_the_same_for_the_same_texts_in_any_order() -> None:
    texts = ["Where was this taken?", "Latitude: 48.8566", "Улица Ленина", "東京 <answer>", "Latitude: -33.9"]
    one, other = train_tokenizer(texts, 400), train_tokenizer([*reversed(texts), texts[0]], 400)
    assert one.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()
    for text in [*texts, "never seen: ñandú 🦘 \n\t<think>"]:
        assert one.decode(one.encode(text)) == text
    assert len(one.encode("48.8566")) == 7, "numbers are read digit by digit"


def test_a_tiny_model_is_the_same_for_the_same_seed_and_survives_saving(
    processor: ImageOnlyProcessor, tmp_path: Path
) -> None:
    tiny = TinySettings(vocabulary=400)
    models = [build_model(processor, tiny, seed) for seed in (3, 3, 4)]
    weights = [next(iter(model.parameters())) for model in models]
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])
    text = models[0].config.text_config
    assert text.hidden_size // text.num_attention_heads == 64
    processor.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "processor_config.json").read_text())["processor_class"] == "Qwen2_5_VLProcessor"
    again = load_processor(str(tmp_path))
    assert again.image_processor.size == processor.image_processor.size
    assert again.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
