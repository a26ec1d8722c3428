"""Bases beside Qwen2.5-VL: Qwen3-VL by the packed path, any other model by the plain one, in every phase."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration, Qwen3VLMoeForConditionalGeneration

from bench.train_kills import by_text
from bench.training_lake import LLAVA_TEMPLATE, tiny_idefics3, tiny_llava
from infra.serve.server import served_app
from schemas.errors import GeofixError
from schemas.messages import image_part, text_part
from schemas.settings.train import GrpoSettings, LoraSettings, TrainSettings
from tasks.imaging.images import to_data_uri
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Kept
from tasks.runtime.stage import open_inputs
from tasks.runtime.steps import Steps
from tasks.train import memory
from tasks.train.chain import chain
from tasks.train.encoding import Encoder, Pictures, PlainEncoder, conversation_texts, open_encoder
from tasks.train.fast.adapters import add_adapters
from tasks.train.fast.families import FAMILIES, fast_model
from tasks.train.loading import load_model, open_processor
from tasks.train.loop import prepare_model
from tasks.train.opening import check_base, check_folder
from tasks.train.plain import PlainModel, as_pixels, pictures_of
from tasks.train.ranks import Ranks, shard
from tasks.train.rollouts.engine import RolloutEngine
from tasks.train.rollouts.plain import PlainEngine
from tasks.train.rollouts.sampling import Sampling
from tasks.train.samples import STAGE, compute
from tasks.train.stage import WorkerContext, work
from tasks.train.tiny import build_model, build_processor
from tasks.train.token_samples import IGNORED, Completion, Group
from tasks.train.training import train_model

pytestmark = pytest.mark.filterwarnings("ignore")
QWEN3 = {"qwen3_vl": Qwen3VLForConditionalGeneration, "qwen3_vl_moe": Qwen3VLMoeForConditionalGeneration}
OTHERS = {"llava": tiny_llava, "idefics3": tiny_idefics3}
Make = Callable[..., TrainSettings]


@pytest.fixture
def ready(lake: Lake, filled: Callable[..., str], settings: Make) -> Lake:
    """A lake with training samples."""
    filled(lake, held_out=1)
    lake.upsert(
        "samples", compute(open_inputs(STAGE, lake), settings())[0].drop("id").to_dicts(), Commit("train.samples", 1)
    )
    return lake


def chosen(lake: Lake, settings: Make, kind: str, folder: Path, **changes: Any) -> TrainSettings:
    """Settings with a tiny Qwen3-VL, or with the folder of another model as their base."""
    if kind in QWEN3:
        return settings(tiny=settings().tiny.model_copy(update={"family": kind}), **changes)
    texts = [text for one in lake.read("samples")["messages_json"] for text in conversation_texts(one)]
    if not folder.exists():
        OTHERS[kind](folder, texts)
    return settings(base=str(folder), **changes)


@pytest.mark.parametrize(
    "kind", ["qwen3_vl", *(pytest.param(kind, marks=pytest.mark.whole) for kind in ("qwen3_vl_moe", *OTHERS))]
)
def test_every_phase_trains_saves_and_is_served(
    kind: str, ready: Lake, settings: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = chosen(ready, settings, kind, tmp_path / "base", validation_images=1)
    check_base(given)
    rows = {}
    for link in chain(ready.read("samples"), given):
        item = {"id": link.model_id, "training_stage": link.phase, "snapshot_id": "s", "samples": link.samples}
        outcome = work(item, WorkerContext(ready, given))
        assert isinstance(outcome, Kept)
        [rows[link.phase]] = outcome.rows["models"]
    assert list(rows) == ["sft", "cold_start", "grpo"]
    path = "packed" if kind in QWEN3 else "plain"
    assert {row["path"] for row in rows.values()} == {path}
    told = [one for one in caplog.messages if "has no packed path" in one]
    assert len(told) == (3 if path == "plain" else 0), "said once for each phase"
    sft = json.loads(rows["sft"]["metrics_json"])
    assert sft["loss"][-1] < sft["loss"][0] and sft["validations"][-1]["loss"] < sft["validations"][0]["loss"]
    assert {"reward", "kl", "entropy"} <= json.loads(rows["grpo"]["metrics_json"]).keys()

    folder = ready.root / rows["grpo"]["checkpoint"]
    model = load_model(folder, torch.float32)
    assert model.config.model_type == kind and check_folder(folder, "trained").parameters > 10_000
    if kind in QWEN3:
        assert isinstance(model, QWEN3[kind]) and model.config.text_config.head_dim == 64, "which vLLM takes"
        assert json.loads((folder / "processor_config.json").read_text())["processor_class"] == "Qwen3VLProcessor"
    client = TestClient(served_app(folder, "mine", max_context=2000), base_url="http://127.0.0.1")
    tool = {"type": "function", "function": {"name": "zoom", "parameters": {"type": "object", "properties": {}}}}
    called = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "zoom", "arguments": "{}"}}
    ]}  # fmt: skip
    picture = io.BytesIO()
    Image.new("RGB", (200, 100), "navy").save(picture, "JPEG")
    asked = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": to_data_uri(picture.getvalue())}}, text_part("Where?")],
    }
    words: dict[str, Any] = {"model": "mine", "max_tokens": 4, "temperature": 0, "messages": [asked]}
    short = client.post("/v1/chat/completions", json=words).json()
    answer = {"role": "tool", "tool_call_id": "a", "content": "a sign"}
    longer = client.post("/v1/chat/completions", json={**words, "messages": [asked, called, answer], "tools": [tool]})
    assert short["usage"]["completion_tokens"] in range(1, 5)
    assert longer.status_code == 200, longer.text
    assert longer.json()["usage"]["prompt_tokens"] > short["usage"]["prompt_tokens"] + 20


@pytest.mark.parametrize("kind", [pytest.param("qwen3_vl", marks=pytest.mark.whole), "llava"])
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    kind: str, ready: Lake, settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.train.training.recipe_scorer", by_text)  # or GRPO would have nothing to learn from
    grpo = GrpoSettings(
        max_steps=4, group_size=4, prompts_per_generation=2, prompts_per_step=1, micro_batch=4, learning_rate=1e-3,
        max_completion_tokens=8,
    )  # fmt: skip
    given = chosen(ready, settings, kind, tmp_path / "base", phases=("grpo",), save_steps=2, grpo=grpo)
    samples = ready.read("samples")
    [link] = chain(samples, given)

    def stop(steps: Steps) -> None:
        if steps.done == 3:
            raise KeyboardInterrupt

    whole = train_model(link, samples, given, tmp_path / "whole", ready.images)
    with pytest.raises(KeyboardInterrupt):
        train_model(link, samples, given, tmp_path / "stopped", ready.images, report=stop)
    assert list((tmp_path / "stopped").glob(".*/checkpoint-2/progress.json"))
    resumed = train_model(link, samples, given, tmp_path / "stopped", ready.images)
    assert whole.metrics == resumed.metrics and whole.metrics["grad_norm"][0] > 0
    weights = [(one.checkpoint / "model.safetensors").read_bytes() for one in (whole, resumed)]
    assert weights[0] == weights[1], "the same weights, bit for bit"


@pytest.mark.parametrize("kind", QWEN3)
def test_the_plain_path_computes_what_the_packed_one_does(kind: str, ready: Lake, settings: Make) -> None:
    """On a model that has both: tokens, labels, losses, gradients, log-probabilities, greedy rollouts."""
    small = chosen(ready, settings, kind, Path())
    samples = ready.read("samples")
    texts = [text for one in samples["messages_json"] for text in conversation_texts(one)]
    processor = build_processor(texts, small.tiny, small.image_min_pixels, small.image_max_pixels)
    model = build_model(processor, small.tiny, seed=1).eval()
    pictures = Pictures(ready.images, small.image_min_pixels, small.image_max_pixels)
    packed, plain = fast_model(model), PlainModel(model, processor)
    encoder, other = Encoder(processor, pictures), PlainEncoder(processor, pictures)
    taught = samples.filter(samples["training_stage"] == "cold_start")["messages_json"].to_list()
    ours, theirs = [encoder.conversation(one) for one in taught], [other.conversation(one) for one in taught]
    newline = processor.tokenizer.encode("\n")[0]
    for one, two in zip(ours, theirs, strict=True):
        assert list(one.ids) == list(two.ids)
        # TRL's template trains the line's end after a turn's end mark, which a rollout never writes.
        changed = [a for a, b in zip(one.labels, two.labels, strict=True) if a != b]
        assert set(changed) <= {newline} and len(changed) == 3

    labelled = [type(one)(one.ids, two.labels, one.pixels, one.grids) for one, two in zip(ours, theirs, strict=True)]
    found = []
    for fast, given in ((packed, labelled), (plain, theirs)):
        model.zero_grad()
        loss = fast.loss(fast.pack(given))
        loss.backward()
        found.append(
            (loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        )
    (loss, gradients), (same_loss, same) = found
    assert loss == pytest.approx(same_loss, abs=1e-5) and gradients.keys() == same.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, atol=1e-5, rtol=1e-4, msg=name)

    asked = samples.filter(samples["training_stage"] == "grpo")["messages_json"].to_list()[:2]
    prompts, others = [encoder.prompt(one) for one in asked], [other.prompt(one) for one in asked]
    assert [list(one.ids) for one in prompts] == [list(one.ids) for one in others]
    drawn = dict(RolloutEngine(packed, 2, 2, 1024, 8, encoder.end_tokens, Sampling(0)).generate(prompts))
    again = dict(PlainEngine(plain, 2, 2, 1024, 8, other.end_tokens, Sampling(0)).generate(others))
    assert {n: [one.ids for one in group] for n, group in drawn.items()} == {
        n: [one.ids for one in group] for n, group in again.items()
    }

    # A tool's answer with a picture goes on the same way, and bears no loss.
    sha256 = samples["sha256"][0]
    responses = [{"role": "tool", "tool_call_id": "a", "content": [text_part("{}"), image_part(sha256)]}]
    added, same_added = (one.responses(responses, [pictures.open(sha256, "jpg")]) for one in (encoder, other))
    assert list(added.ids) == list(same_added.ids)
    groups = []
    for prompt, tail in ((prompts[0], added), (others[0], same_added)):
        said = drawn[0][0].ids
        mine = [*[True] * len(said), *[False] * len(tail.ids), *[True] * len(said)]
        once = Completion([*said, *tail.ids, *said], mine, tail.pixels, tail.grids)
        groups.append(Group(prompt, (once, Completion(said, [True] * len(said)))))
    with torch.no_grad():
        one, two = (
            packed.log_probs(packed.pack_groups(groups[:1]), 0.7),
            plain.log_probs(plain.pack_groups(groups[1:]), 0.7),
        )
    for left, right in zip(one, two, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


def test_a_qwen3_with_a_template_of_its_own_is_rendered_by_it(ready: Lake, settings: Make, tmp_path: Path) -> None:
    small = chosen(ready, settings, "qwen3_vl", Path())
    processor = build_processor(["Where?"], small.tiny, 1568, 4704)
    build_model(processor, small.tiny, 0).save_pretrained(tmp_path)
    processor.chat_template = "{%- set unlike = 1 %}" + processor.chat_template
    processor.save_pretrained(tmp_path)
    opened = open_processor(tmp_path, 4096, 8192)
    assert opened.chat_template == processor.chat_template, "kept"
    tower = opened.image_processor
    assert (tower.patch_size, list(tower.image_mean), tower.size["longest_edge"]) == (16, [0.5] * 3, 8192)
    pictures = Pictures(ready.images, 1568, 4704)
    one = ready.read("samples").filter(training_stage="cold_start")["messages_json"][0]
    plain = build_processor(["Where?"], small.tiny, 4096, 8192)
    by_turns, by_twin = Encoder(opened, pictures).conversation(one), Encoder(plain, pictures).conversation(one)
    assert list(by_turns.ids) == list(by_twin.ids) and len(by_turns.grids) == 2


@pytest.mark.parametrize("kind", QWEN3)
def test_a_saved_qwen3_opens_by_transformers_alone(
    kind: str, settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torchvision its processor is the class beside the weights, with the same tokens and patches."""
    tiny = settings().tiny.model_copy(update={"family": kind})
    processor = build_processor(["Where was this picture taken?"], tiny, 4096, 16384)
    model = build_model(processor, tiny, 0).eval()
    processor.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    opened = AutoProcessor.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(opened).__name__ == "Qwen3VLProcessor" and opened.image_processor.patch_size == 16
    video = json.loads((tmp_path / "video_preprocessor_config.json").read_text())
    assert video["video_processor_type"] == "Qwen3VLVideoProcessor"
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?"}]}]
    text = opened.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    picture = Image.effect_noise((120, 80), 90).convert("RGB")
    theirs, ours = (one(text=[text], images=[picture], return_tensors="pt") for one in (opened, processor))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)
    reopened = load_model(tmp_path, torch.float32).eval()
    with torch.no_grad():
        assert torch.equal(reopened(**theirs).logits, model(**ours).logits)


def test_other_templates_label_what_the_assistant_says_and_its_end(ready: Lake, settings: Make, tmp_path: Path) -> None:
    rows = ready.read("samples").filter(training_stage="cold_start")["messages_json"]
    spoken = [one["content"] for one in json.loads(rows[0]) if one["role"] == "assistant"]
    for kind, end in (("llava", "<|im_end|>"), ("idefics3", "<end_of_utterance>")):
        given = chosen(ready, settings, kind, tmp_path / kind)
        processor = open_processor(Path(given.base))
        encoder = PlainEncoder(processor, Pictures(ready.images, 1568, 4704))
        sample = encoder.conversation(rows[0])
        runs: list[list[int]] = []
        for place, label in enumerate(sample.labels):
            if label != IGNORED:
                if sample.labels[place - 1] == IGNORED:
                    runs.append([])
                runs[-1].append(label)
        assert [processor.tokenizer.decode(run).strip() for run in runs] == [text + end for text in spoken]
        prompt = encoder.prompt(json.dumps(json.loads(rows[0])[:2]))
        assert list(sample.ids[: len(prompt.ids)]) == list(prompt.ids), "trained after what it is asked with"
        assert len(sample.grids) == 2 and sample.pixels is not None
        assert sample.pixels.shape == (sum(h * w for _, h, w in sample.grids), 3)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_tools_answer_goes_on_as_the_models_own_template_writes_it(kind: str, tmp_path: Path) -> None:
    processor = open_processor(OTHERS[kind](tmp_path))
    encoder = PlainEncoder(processor, None)
    shown = [Image.new("RGB", (60, 40), colour) for colour in ("navy", "gold")]
    asked = [
        {"role": "system", "content": "Find it."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?"}]},
    ]
    said = '<tool_call>\n{"name": "zoom", "arguments": {}}\n</tool_call>'
    call = {"id": "a", "type": "function", "function": {"name": "zoom", "arguments": "{}"}}
    answered = {"role": "tool", "tool_call_id": "a", "content": [text_part("a sign"), {"type": "image"}]}
    tool = {"type": "function", "function": {"name": "zoom", "parameters": {"type": "object", "properties": {}}}}
    prompt = encoder.prompt(asked, [tool], shown[:1])
    whole = encoder.prompt(
        [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}, answered], [tool], shown
    )
    tail = encoder.responses([answered], shown[1:])
    decode = processor.tokenizer.decode
    together = decode(prompt.ids) + " " + said + ("" if kind == "llava" else "<end_of_utterance>") + decode(tail.ids)
    assert together == decode(whole.ids), "what a rollout holds is what the template makes of the conversation"
    assert "<tools>" in together and "<tool_response>\na sign" in together
    assert (*prompt.grids, *tail.grids) == whole.grids


def test_a_template_without_a_system_turn_is_given_its_words(tmp_path: Path) -> None:
    refuses = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + LLAVA_TEMPLATE
    processor = open_processor(tiny_llava(tmp_path, template=refuses))
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    text = processor.tokenizer.decode(PlainEncoder(processor, None).prompt(asked).ids)
    assert "Be brief.\n\nWhere?" in text and "system" not in text


def test_adapters_of_a_plain_model_and_the_reference_without_them(ready: Lake, settings: Make, tmp_path: Path) -> None:
    given = chosen(ready, settings, "idefics3", tmp_path / "base", lora=LoraSettings(rank=2, alpha=4))
    processor, model = open_processor(Path(given.base)), load_model(Path(given.base), torch.float32)
    before = PlainModel(model, processor)
    encoder = open_encoder(before, processor, Pictures(ready.images, 1568, 4704))
    sample = encoder.conversation(ready.read("samples")["messages_json"][0])
    loss = before.loss(before.pack([sample])).item()
    add_adapters(model, LoraSettings(rank=2, alpha=4))
    adapted = [name for name, p in model.named_parameters() if p.requires_grad]
    assert adapted and all("text_model" in name and "lora_" in name for name in adapted)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p)
    changed, reference = PlainModel(model, processor), before.alike(model, use_adapters=False)
    assert changed.loss(changed.pack([sample])).item() != pytest.approx(loss, abs=1e-4)
    with torch.no_grad():
        assert reference.loss(reference.pack([sample])).item() == pytest.approx(loss, abs=1e-6)
    assert all(p.requires_grad for name, p in model.named_parameters() if "lora_" in name), "still trained"


def test_a_plain_model_is_not_shared_out_and_its_eyes_can_rest(ready: Lake, settings: Make, tmp_path: Path) -> None:
    given = chosen(ready, settings, "llava", tmp_path / "base", freeze="vision")
    processor = open_processor(Path(given.base))
    fast = prepare_model(load_model(Path(given.base), torch.float32), given, processor)
    with pytest.raises(GeofixError, match=r"'llava' has none: set train\.shard=none"):
        shard(fast, Ranks(0, 2))
    frozen = {name for name, p in fast.model.named_parameters() if not p.requires_grad}
    assert frozen and all("vision_tower" in name for name in frozen)


def test_folders_of_qwen3_are_checked_and_their_memory_is_forecast(settings: Make, tmp_path: Path) -> None:
    assert tuple(FAMILIES) == memory.PACKED
    for kind in QWEN3:
        tiny = settings().tiny.model_copy(update={"family": kind})
        processor = build_processor(["Where?"], tiny, 1568, 4704)
        model = build_model(processor, tiny, 0)
        folder = tmp_path / kind
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        shape = check_folder(folder, "x")
        assert shape.parameters == sum(p.numel() for p in model.parameters()) and shape.patch == 16
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
        with pytest.raises(GeofixError, match="quantized weights, which cannot be trained"):
            check_base(TrainSettings(base=str(folder)))
        config["vision_config"]["hidden_size"] = 64
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(GeofixError, match=r"qkv\.weight has the shape \(96, 32\) .* and \(192, 64\)"):
            check_base(TrainSettings(base=str(folder)))
    pictures = [memory.load_of(settings(), "sft", 100, 1, 8, patch).patches for patch in (14, 16)]
    assert pictures[0] > pictures[1]


def test_pictures_are_kept_to_the_bit() -> None:
    shown = [Image.effect_noise((30, 20), 80).convert("RGB"), Image.effect_noise((7, 9), 80).convert("RGB")]
    pixels, grids = as_pixels(shown)
    assert pixels is not None and grids == ((1, 20, 30), (1, 9, 7))
    assert [one.tobytes() for one in pictures_of(pixels.numpy().tobytes(), grids)] == [one.tobytes() for one in shown]
