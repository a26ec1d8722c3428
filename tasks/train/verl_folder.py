"""A folder that verl trains from: questions, tools, reward hook and launch configuration of the GRPO phase.

| file | what it is |
|---|---|
| train.parquet, validation.parquet | rows of verl's RL reader; the truth stands where the reward alone looks |
| tools.yaml | verl's tool configuration, where the recipe trains with tools (`tasks/agent/verl_tools.py`) |
| pictures/ | the originals that tools zoom into, by their digest |
| reward.py | verl's `custom_reward_function` |
| settings.yaml | our settings that reward and tools read; keys come from the environment |
| launch.yaml, launch.sh | verl's configuration with every figure of `train.grpo`, and the command |
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from schemas.config import Config
from schemas.errors import InputError
from schemas.messages import image_references
from schemas.settings.train import TrainSettings
from tasks.agent.picture import open_picture
from tasks.agent.prompt import Prompt
from tasks.agent.render import chat_template
from tasks.agent.toolbox import RESULT_CHARS
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES, rollout_prompt
from tasks.recipes.rewards import rewarded_recipes
from tasks.reward.outcome import TRUTH_COLUMNS
from tasks.runtime.snapshots import Snapshot
from tasks.runtime.stage import open_inputs
from tasks.train.chain import chain, samples_of
from tasks.train.fitting import CHARS_A_TOKEN, size_of
from tasks.train.memory import TOKEN_PIXELS
from tasks.train.opening import base_folder
from tasks.train.result import finished_result
from tasks.train.samples import STAGE, compute, held_out
from tasks.train.stage import MODELS

Row = dict[str, Any]
TOOL = "tasks.agent.verl_tools.GeofixTool"
ESTIMATOR = "tasks.train.verl_estimator"
_TEXT = pa.string()
_PICTURES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", _TEXT)]))
_CREDIT = ("image_id", "licence", "attribution")


@dataclass(frozen=True)
class Written:
    """What a folder holds."""

    folder: Path
    train: int
    validation: int
    tools: int


def write_verl_folder(lake: Lake, config: Config, out: Path, model: str, snapshot: Snapshot | None = None) -> Written:
    """Write the folder `out`, which must not be there yet; `model` is the path verl starts from."""
    settings = config.train
    if settings.recipe not in rewarded_recipes():
        raise InputError(f"recipe '{settings.recipe}' has no reward to train with; give another --recipe")
    if settings.grpo.reward.grounding:
        raise InputError(
            "train.grpo.reward.grounding looks at conversations, which verl's hook is not given: set it to 0"
        )
    if settings.grpo.max_turns and getattr(RECIPES[settings.recipe].reward, "of_trajectory", None) is not None:
        raise InputError("the recipe's reward looks at conversations: set train.grpo.max_turns to 0 for verl")
    if out.exists():
        raise InputError(f"--out: '{out}' is there already; name a new folder")
    samples, _ = compute(open_inputs(STAGE, lake, snapshot), settings)
    chosen = samples_of(samples, "grpo", settings).to_dicts()
    if not chosen:
        raise InputError("there are no GRPO samples: run `geofix difficulty` on the approved snapshot first")
    rows = curriculum_order(chosen, settings.grpo.epochs)
    shown = held_out(lake, settings)
    tools = _prompt(settings).tools
    out.parent.mkdir(parents=True, exist_ok=True)
    final, part = out.resolve(), out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        _write_rows(part, "train", rows, lake, settings, tools)
        _write_rows(part, "validation", shown or rows[:1], lake, settings, tools)
        if tools:
            _yaml(part / "tools.yaml", {"tools": [_tool(name, _prompt(settings), final) for name in sorted(tools)]})
        kept = {name: getattr(config, name).model_dump(mode="json") for name in ("train", "services", "models")}
        _yaml(part / "settings.yaml", {"recipe": settings.recipe, "profile": config.profile, **kept})
        (part / "reward.py").write_text(
            "from tasks.train.verl_hook import compute_score\n\n__all__ = ['compute_score']\n", encoding="utf-8"
        )
        _yaml(part / "launch.yaml", launch_configuration(settings, final, model, rows, bool(tools)))
        script = part / "launch.sh"
        script.write_text(_script(final), encoding="utf-8")
        script.chmod(0o755)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return Written(final, len(rows), len(shown), len(tools))


def curriculum_order(rows: Sequence[Row], epochs: float) -> list[Row]:
    """All questions of a run, once each time they come, as `grpo.py` orders them: phase I, then both phases mixed.

    verl does not watch for phase I to converge, so phase II begins when all of phase I has been seen.
    """
    first = [row for row in rows if row.get("phase") in (None, 1)]
    mixed = sorted(rows, key=lambda row: str(row.get("sha256"))) if len(first) < len(rows) else rows
    alone, total = math.ceil(len(first) * epochs), math.ceil(len(rows) * epochs)
    return [first[n % len(first)] for n in range(alone)] + [mixed[n % len(mixed)] for n in range(total - alone)]


def start_of(lake: Lake, settings: TrainSettings, snapshot: Snapshot | None = None) -> str:
    """The folder of the model that the GRPO phase starts from: its parent where one is trained, else the base."""
    samples, _ = compute(open_inputs(STAGE, lake, snapshot), settings)
    parents = [link.parent_id for link in chain(samples, settings) if link.phase == "grpo"]
    parent = parents[0] if parents else None
    if parent is None:
        if settings.base == "tiny":
            raise InputError("train.base=tiny has no folder that verl could open: name one with --model")
        return str(base_folder(settings.base))
    if finished_result(lake.blobs.pull(f"{MODELS}/{parent}")) is None:
        raise InputError(
            f"GRPO starts from model {parent}, which is not trained yet: train it, or name one with --model"
        )
    return str(lake.blobs.pull(f"{MODELS}/{parent}").resolve())


def _write_rows(
    folder: Path, split: str, rows: Sequence[Row], lake: Lake, settings: TrainSettings, tools: Iterable[str]
) -> None:
    schema = _schema(tools)
    with pq.ParquetWriter(folder / f"{split}.parquet", schema) as writer:
        for index, row in enumerate(rows):
            made = _row(folder, split, index, row, lake, settings, tools)
            writer.write_table(pa.Table.from_pylist([made], schema))


def _row(
    folder: Path, split: str, index: int, row: Row, lake: Lake, settings: TrainSettings,
    tools: Iterable[str],
) -> Row:  # fmt: skip
    """One question. The truth stands where only the reward hook reads it."""
    messages = json.loads(row["messages_json"])
    [reference] = image_references(messages)
    picture = open_picture(lake.images.read(*reference), settings.image_max_pixels, settings.image_min_pixels)
    tool_fields: Row = {}
    if tools:
        # verl adds the tools to the words itself
        messages = _prompt(settings).opening({"type": "image"})
        name = f"pictures/{reference[0]}.{reference[1]}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.original)
        tool_fields = {"tools_kwargs": {tool: {"create_kwargs": {"picture": name}} for tool in sorted(tools)}}
    return {
        "data_source": f"geofix/{settings.recipe}",
        "prompt": [{"role": turn["role"], "content": _marked(turn["content"])} for turn in messages],
        "images": [{"bytes": picture.view, "path": None}],
        "ability": "geolocation",
        "reward_model": {
            "style": "rule",
            "ground_truth": json.dumps({name: row.get(name) for name in TRUTH_COLUMNS}, ensure_ascii=False),
        },
        "extra_info": {"split": split, "index": index, "need_tools_kwargs": bool(tools), **tool_fields},
        "agent_name": "tool_agent" if tools else "single_turn_agent",
        **{name: row.get(name) for name in _CREDIT},
    }


def _schema(tools: Iterable[str]) -> pa.Schema:
    info = [("split", _TEXT), ("index", pa.int64()), ("need_tools_kwargs", pa.bool_())]
    if tools:
        arguments = pa.struct([("create_kwargs", pa.struct([("picture", _TEXT)]))])
        info.append(("tools_kwargs", pa.struct([(name, arguments) for name in sorted(tools)])))
    return pa.schema(
        {
            "data_source": _TEXT,
            "prompt": pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)])),
            "images": _PICTURES,
            "ability": _TEXT,
            "reward_model": pa.struct([("style", _TEXT), ("ground_truth", _TEXT)]),
            "extra_info": pa.struct(info),
            "agent_name": _TEXT,
            **dict.fromkeys(_CREDIT, _TEXT),
        }
    )


def _marked(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else "<image>" for part in content)


def _tool(name: str, prompt: Prompt, folder: Path) -> Row:
    config = {
        "type": "native",
        "tool": name,
        "offered": list(prompt.tools),
        "limits": [prompt.search_results, prompt.result_chars],
        "folder": str(folder),
        "settings": str(folder / "settings.yaml"),
    }
    return {"class_name": TOOL, "config": config}


def _script(folder: Path) -> str:
    return f"""#!/bin/sh
# verl 0.9.1 on this folder, from an environment that has verl, vLLM and geofix; further settings may follow.
export VERL_USE_EXTERNAL_MODULES={ESTIMATOR}
exec python -m verl.trainer.main_ppo --config-path '{folder}' --config-name launch "$@"
"""


def _yaml(path: Path, value: Row) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), encoding="utf-8")


# How token losses are averaged, in verl's words.
AVERAGED = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
SCHEDULES = {"constant": "constant", "cosine": "cosine"}
PROMPT_TOKENS = 4096  # SpotAgent's Table 7; longer where a question needs it
ROUND = 256


def launch_configuration(
    settings: TrainSettings, folder: Path, model: str, rows: Sequence[Mapping[str, Any]], has_tools: bool
) -> dict[str, Any]:
    """A Hydra file over verl's own `ppo_trainer`."""
    grpo = settings.grpo
    if grpo.schedule not in SCHEDULES:
        raise InputError(f"train.grpo.schedule={grpo.schedule}: verl knows {' and '.join(SCHEDULES)}")
    if grpo.advantage != "grpo":
        raise InputError(f"train.grpo.advantage={grpo.advantage}: the folder for verl knows grpo alone")
    if grpo.credit != "end" or grpo.tau_km is not None:
        raise InputError("train.grpo.credit=turn and train.grpo.tau_km are not in the folder for verl: leave them out")
    multi_turn: dict[str, Any] = {"enable": has_tools, "format": "hermes"}
    if has_tools:
        multi_turn |= {
            "tool_config_path": str(folder / "tools.yaml"),
            "max_assistant_turns": grpo.max_turns,
            "max_parallel_calls": _prompt(settings).budgets.calls,
            "max_tool_response_length": _prompt(settings).result_chars or RESULT_CHARS,
        }
    adapters = {} if settings.lora is None else {"lora_rank": settings.lora.rank, "lora_alpha": settings.lora.alpha}
    passes = {"log_prob_micro_batch_size_per_gpu": grpo.micro_batch}
    return {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "data": {
            "train_files": str(folder / "train.parquet"),
            "val_files": str(folder / "validation.parquet"),
            "train_batch_size": min(grpo.prompts_per_generation, len(rows)),
            "max_prompt_length": prompt_tokens(settings, rows),
            "max_response_length": grpo.max_completion_tokens,
            "shuffle": False,  # the rows lie in the order of the curriculum
            "seed": settings.seed,
            "truncation": "error",
        },
        "algorithm": {"adv_estimator": "geofix_grpo", "use_kl_in_reward": False, "norm_adv_by_std_in_grpo": True},
        "actor_rollout_ref": {
            "model": {
                "path": model,
                "custom_chat_template": chat_template(),  # Qwen2.5-VL's own has no tools
                "enable_gradient_checkpointing": settings.gradient_checkpointing != "none",
                **adapters,
            },
            "actor": {
                "ppo_mini_batch_size": min(grpo.prompts_per_step, len(rows)),
                "ppo_micro_batch_size_per_gpu": grpo.micro_batch,
                "ppo_epochs": 1,
                "clip_ratio": grpo.clip,
                "clip_ratio_low": grpo.clip,
                "clip_ratio_high": grpo.clip,
                "clip_ratio_c": 1e9,  # the recipes' objective has no second bound for negative advantages
                "loss_agg_mode": AVERAGED[grpo.loss],
                "loss_scale_factor": grpo.max_completion_tokens if grpo.loss == "dr_grpo" else None,
                "use_kl_loss": grpo.kl > 0,
                "kl_loss_coef": grpo.kl,
                "kl_loss_type": "low_var_kl",
                "entropy_coeff": 0,
                "optim": {
                    "lr": grpo.learning_rate,
                    "weight_decay": 0.0,
                    "lr_scheduler_type": SCHEDULES[grpo.schedule],
                    "clip_grad": 1.0,
                },
            },
            "ref": passes,
            "rollout": {
                "name": "vllm",
                "n": grpo.group_size,
                "temperature": grpo.temperature,
                "tensor_model_parallel_size": settings.verl.tensor_parallel,
                "gpu_memory_utilization": settings.verl.memory_share,
                "multi_turn": multi_turn,
                "agent": {"default_agent_loop": "tool_agent" if has_tools else "single_turn_agent"},
                **passes,
            },
        },
        "reward": {
            "custom_reward_function": {
                "path": str(folder / "reward.py"),
                "name": "compute_score",
                "reward_kwargs": {"config": str(folder / "settings.yaml")},
            }
        },
        "trainer": {
            "total_epochs": 1,  # the rows are all of them
            "total_training_steps": grpo.max_steps,
            "save_freq": settings.save_steps,
            "test_freq": settings.validation_steps,
            "logger": ["console", "tensorboard"],
            "project_name": "geofix",
            "experiment_name": f"{settings.recipe}-grpo",
            "default_local_dir": str(folder / "checkpoints"),
        },
        "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"VERL_USE_EXTERNAL_MODULES": ESTIMATOR}}}},
    }


def prompt_tokens(settings: TrainSettings, rows: Sequence[Mapping[str, Any]]) -> int:
    """Room for the longest question with its picture."""
    text = max(size_of(row["messages_json"])[0] for row in rows) / CHARS_A_TOKEN
    needed = text + settings.image_max_pixels / TOKEN_PIXELS
    return max(PROMPT_TOKENS, round(-(-needed // ROUND) * ROUND))


def _prompt(settings: TrainSettings) -> Prompt:
    return rollout_prompt(settings.recipe, settings.grpo.max_turns, settings.prompt)
