"""Bad input to training: one clear line each, nothing half-written; signs of trouble are named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration
from typer.testing import CliRunner

from flows.cli import app
from schemas.errors import GeofixError
from schemas.settings.train import GrpoSettings, LoraSettings, TrainingPhase, TrainSettings
from tasks.lake import Commit, Lake
from tasks.train import checkpoints, fitting
from tasks.train.checkpoints import Progress, load_checkpoint, save_checkpoint
from tasks.train.fast.optimizer import StochasticAdamW
from tasks.train.memory import ROOM, Load, Shape, fit, fit_text, load_of, memory_needed, named_gpu
from tasks.train.opening import check_base
from tasks.train.signs import Signs

Build = Callable[..., Qwen2_5_VLForConditionalGeneration]


@pytest.fixture
def base(tmp_path: Path, build_tiny: Build) -> Path:
    folder = tmp_path / "base"
    build_tiny().save_pretrained(folder)
    for name in ("tokenizer_config.json", "tokenizer.json", "preprocessor_config.json"):
        (folder / name).write_text("{}")
    return folder


def refused(base: Path | str) -> str:
    with pytest.raises(GeofixError) as error:
        check_base(TrainSettings(base=str(base)))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_base_that_cannot_be_trained_is_refused_at_once(base: Path) -> None:
    check_base(TrainSettings(base=str(base)))
    assert "there is no such folder" in refused("/models/Qwen2.5-VL-7B-Instruct")
    assert "neither a folder here nor a model in the local cache" in refused("Qwen/Qwen2.5-VL-7B-Instruct")

    weights = base / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "the copy was cut short" in refused(base)
    weights.write_bytes(b"\x00" * 100)
    assert "are damaged" in refused(base)
    weights.unlink()
    assert "weights model.safetensors are missing" in refused(base)
    weights.write_bytes(whole)

    tensors = load_file(weights)
    save_file({name: one for name, one in tensors.items() if ".layers.1." not in name}, weights)
    assert "the weights lack layers.1.mlp.down_proj.weight, which config.json asks for" in refused(base)
    weights.write_bytes(whole)
    for name in ("tokenizer.json", "preprocessor_config.json"):
        (base / name).rename(base / "away")
        assert f"{name} is missing; copy the whole folder" in refused(base)
        (base / "away").rename(base / name)

    config = json.loads((base / "config.json").read_text())
    other = {**config, "vision_config": {**config["vision_config"], "hidden_size": 64}}
    (base / "config.json").write_text(json.dumps(other))
    assert "qkv.weight has the shape (96, 32) in the weights and (192, 64) in config.json" in refused(base)
    (base / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    assert "holds a model of type 'llama'; training takes Qwen2.5-VL, Qwen3-VL and other models" in refused(base)
    (base / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    assert "config.json names no 'vision_config'" in refused(base)
    (base / "config.json").write_text("{")
    assert "config.json cannot be read as JSON" in refused(base)
    shutil.rmtree(base)
    base.mkdir()
    assert "config.json is missing" in refused(base)


def test_the_command_says_so_in_one_line_and_writes_nothing(base: Path, tmp_path: Path) -> None:
    def told(folder: str) -> str:
        lake = tmp_path / "lake"
        done = CliRunner().invoke(app, ["train", "--lake", str(lake), "--set", f"train.base={folder}"])
        assert done.exit_code == 1 and done.stdout == "" and not lake.exists()
        [line] = [line for line in done.stderr.splitlines() if not line.startswith("checking the settings")]
        return line

    assert "train.base=/models/Qwen2.5-VL-7B-Instruct: there is no such folder" in told(
        "/models/Qwen2.5-VL-7B-Instruct"
    )
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "the copy was cut short, copy it again" in told(str(base))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    assert "holds a model of type 'llama'; training takes Qwen2.5-VL, Qwen3-VL and other models" in told(str(base))


def test_a_snapshot_that_is_not_approved_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    def told(lake: Path) -> str:
        done = CliRunner().invoke(app, ["train", "--lake", str(lake)])
        assert done.exit_code == 1 and done.stdout == ""
        assert not list((lake / ".state").glob("prefect*")), "no server was started"
        [line] = [line for line in done.stderr.splitlines() if not line.startswith("checking the settings")]
        return line

    assert "there is no snapshot to work on; run: geofix review" in told(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    lake = Lake(tmp_path / "lake")
    row = {"snapshot_id": "s" * 8, "status": "pending", "report": "reports/s", "table_versions_json": "{}"}
    lake.upsert("snapshots", [row], Commit("review", 1))
    assert "no snapshot is approved; the newest, ssssssss is pending" in told(lake.root)


def optimizer_of(model: Any) -> StochasticAdamW:
    optimizer = StochasticAdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_a_checkpoint_that_will_not_fit_is_not_begun(
    tmp_path: Path, build_tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_tiny()
    optimizer = optimizer_of(model)
    kept = save_checkpoint(tmp_path, model, optimizer, Progress(step=1))
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(GeofixError, match=r"needs 6\d\.\d MB and 0\.0 MB are free"):
        save_checkpoint(tmp_path, model, optimizer, Progress(step=2))
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_a_checkpoint_of_another_size_is_refused(tmp_path: Path, build_tiny: Build) -> None:
    model = build_tiny()
    path = save_checkpoint(tmp_path, model, optimizer_of(model), Progress(step=1))
    weights = torch.load(path / "weights.pt")
    weights["lm_head.weight"] = weights["lm_head.weight"][:10]
    torch.save(weights, path / "weights.pt")
    with pytest.raises(GeofixError, match=r"is of another model: lm_head.weight \(10, 64\) has shape \(96, 64\)"):
        load_checkpoint(path, model, StochasticAdamW(model.parameters()))


@pytest.mark.parametrize("states", ["fp32", "bf16"])
@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_every_kind_of_state_learns_and_is_restored_bit_by_bit(
    tmp_path: Path, states: Any, masters: bool, offload: bool
) -> None:
    torch.manual_seed(0)
    target = torch.randn(40, 30)

    def run(steps: int, resume_at: int | None = None) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.zeros(40, 30, dtype=torch.bfloat16))
        optimizer = StochasticAdamW([weight], lr=0.02, states=states, masters=masters, offload=offload)
        for step in range(steps):
            if step == resume_at:
                torch.save((weight.detach(), optimizer.state_dict()), tmp_path / "state.pt")
                values, state = torch.load(tmp_path / "state.pt", weights_only=True)
                weight = torch.nn.Parameter(values)
                optimizer = StochasticAdamW([weight], lr=0.02, states=states, masters=masters, offload=not offload)
                optimizer.load_state_dict(state)
            (weight.float() - target).pow(2).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach()

    found = run(200)
    assert (found.float() - target).abs().mean() < 0.05
    assert torch.equal(found, run(200, resume_at=77))


SEVEN = Shape(3584, 28, 18_944, 512, 152_064, False, 1280, 32, 3456, 4)


def test_memory_of_the_7b_shape_is_what_an_h200_showed() -> None:
    """Peaks that torch reported there for two samples of 3,062 tokens with 2 Mpx each (docs/train-gpu.md)."""
    assert SEVEN.parameters == 8_296_592_640
    load = Load(6124, 20_400, 768)
    for kept, gib in (("none", 99.9), ("vision", 75.8)):
        settings = TrainSettings(gradient_checkpointing=kept)
        assert memory_needed(SEVEN, settings, "sft", load).total / 2**30 == pytest.approx(gib, rel=0.1)
    assert memory_needed(SEVEN, TrainSettings(lora=LoraSettings()), "sft", load).states < 4e9


def test_the_papers_grpo_fits_one_h200() -> None:
    """2,048 sequences in one `generate` took 770 GiB of key cache; here groups follow one another."""
    settings = TrainSettings(grpo=GrpoSettings())
    load = load_of(settings, "grpo", text_tokens=400, pictures=1, samples=10_000)
    found = memory_needed(SEVEN, settings, "grpo", load)
    assert found.key_cache / 2**30 < 20
    assert found.total / 2**30 < 139
    offloaded = memory_needed(SEVEN, TrainSettings(grpo=GrpoSettings(reference="offload")), "grpo", load)
    assert found.total - offloaded.total == pytest.approx(2 * SEVEN.parameters * 1.02, rel=0.01)
    beside = memory_needed(SEVEN, TrainSettings(optimizer="offload"), "grpo", load)
    assert found.total - beside.total == pytest.approx(4 * SEVEN.parameters * 1.02, rel=0.01)


def fitted(phase: TrainingPhase, size: str, text: int = 500, **changes: Any) -> tuple[TrainSettings, float]:
    """What auto chooses for a sample of one picture of 2 Mpx, and the GiB it leaves free."""
    grpo = GrpoSettings(prompts_per_generation=4, prompts_per_step=4, max_completion_tokens=128, rollout_groups=4)
    settings = TrainSettings(**{"grpo": grpo, **changes})
    room = ROOM * named_gpu(size).total
    chosen, needed = fit(SEVEN, settings, phase, text, 1, 100, room)
    return chosen, (room - needed.total) / 2**30


def test_auto_packs_as_much_as_fits_and_saves_memory_in_order() -> None:
    h200, free = fitted("sft", "141GB", gradient_checkpointing="none")
    assert h200.gradient_checkpointing == "none" and h200.optimizer == "device" and free >= 0
    assert isinstance(h200.pack_tokens, int) and 2 * 3051 <= h200.pack_tokens < 3 * 3051
    larger, _ = fitted("sft", "288GB", gradient_checkpointing="none")
    assert isinstance(larger.pack_tokens, int) and larger.pack_tokens > 2 * h200.pack_tokens
    whole, free = fitted("grpo", "80GB")
    assert whole.grpo.reference == "offload" and whole.optimizer == "device" and free >= 0
    assert fit_text(whole, "grpo").endswith("grpo.engine=auto grpo.reference=offload grpo.rollout_groups=4")
    small, free = fitted("sft", "48GB")
    assert (small.gradient_checkpointing, small.optimizer) == ("all", "offload") and free >= 0
    for phase in ("sft", "grpo"):
        adapters, free = fitted(phase, "24GB", lora=LoraSettings())
        assert adapters.gradient_checkpointing == "all" and free >= 0, "LoRA of 7B fits 24 GB"
        assert fitted(phase, "24GB")[1] < 0, "and all of its weights do not"
    fixed, _ = fitted("sft", "24GB", pack_tokens=8192)
    assert fixed == TrainSettings(pack_tokens=8192, grpo=fixed.grpo), "what was set stays"


def test_vllm_is_chosen_where_it_is_here_fits_and_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = json.dumps([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?" * 60}]}])
    samples = pl.DataFrame({"messages_json": [asked] * 100})
    monkeypatch.setattr(fitting, "shape_of", lambda settings: SEVEN)

    def engine(total: float | None = 141e9, **changes: Any) -> str:
        grpo = GrpoSettings(**{"max_completion_tokens": 512, **changes})
        settings = TrainSettings(base="tiny", grpo=grpo, lora=LoraSettings())
        return fitting.forecast_phase(samples, "grpo", settings, total).settings.grpo.engine

    monkeypatch.setattr(fitting.shutil, "which", lambda name: None)
    assert engine() == "embedded" and engine(engine="vllm") == "vllm", "what was set stays"
    monkeypatch.setattr(fitting.shutil, "which", lambda name: name)
    assert engine() == "vllm"
    assert engine(group_size=32) == "embedded", "measured slower there"
    assert engine(24e9) == "embedded", "no room beside the trainer"
    assert engine(None) == "embedded", "no GPU"


def test_a_gpu_is_named_by_its_size() -> None:
    assert named_gpu("80GB").total == 80e9 and named_gpu("24 GiB").total == 24 * 2**30 == named_gpu("24gi").total
    for wrong in ("", "0GB", "large", "-4GB"):
        with pytest.raises(GeofixError, match="is no size of a GPU's memory"):
            named_gpu(wrong)


def steps(signs: Signs, **series: list[float]) -> list[str]:
    found = []
    for number in range(len(next(iter(series.values())))):
        figures = {name: values[number] for name, values in series.items()}
        found += [name for name, _ in signs.seen(number + 1, {"loss": 0.1, **figures})]
    return found


def test_trouble_is_named_once_as_it_begins() -> None:
    grpo = TrainSettings(grpo=GrpoSettings(max_completion_tokens=100))
    calm = {"completion_tokens": [40.0] * 30, "dead_groups": [0.2] * 30}
    assert steps(Signs(grpo), reward=[0.5] * 30, **calm) == []
    assert steps(Signs(grpo), reward=[0.5] * 12 + [0.0] * 18, **calm) == ["reward_collapse"]
    longer = {"completion_tokens": [30.0] * 12 + [95.0] * 18, "dead_groups": [0.2] * 30}
    assert steps(Signs(grpo), reward=[0.5] * 30, **longer) == ["length_explosion"]
    dead = {"completion_tokens": [40.0] * 30, "dead_groups": [1.0] * 30}
    assert steps(Signs(grpo), reward=[0.0] * 30, **dead) == ["dead_groups"]
    assert steps(Signs(grpo), loss=[1.0] * 15 + [9.0] + [1.0] * 5) == ["loss_spike"]
