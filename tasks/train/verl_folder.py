"""A folder that verl trains from: questions, tools, reward hook and launch configuration of the GRPO stage.

| file | what it is |
|---|---|
| train.parquet, validation.parquet | rows of verl's RL reader; the truth stands where the reward alone looks |
| tools.yaml | verl's tool configuration, where the recipe trains with tools (`tasks/agent/verl_tools.py`) |
| pictures/ | the originals that tools zoom into, by their digest |
| reward.py | verl's `custom_reward_function` |
| settings.yaml | our settings that reward and tools read; keys come from the environment |
| launch.yaml, launch.sh | verl's configuration with every figure of `train.grpo`, and the command |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
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
from tasks.agent.recipes import RECIPES
from tasks.lake import Lake
from tasks.reward.score import SCORERS, TRUTH_COLUMNS
from tasks.runtime.snapshots import Snapshot
from tasks.runtime.stage import open_inputs
from tasks.train.chain import chain, samples_of
from tasks.train.held_out import held_out
from tasks.train.opening import base_folder
from tasks.train.result import finished
from tasks.train.samples import STAGE, compute
from tasks.train.stage import MODELS
from tasks.train.verl_launch import launch_configuration
from tasks.train.with_tools import budgets_of

Row = dict[str, Any]
TOOL = "tasks.agent.verl_tools.GeofixTool"
ESTIMATOR = "tasks.reward.verl_estimator"
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
    if settings.recipe not in SCORERS:
        raise InputError(f"recipe '{settings.recipe}' has no reward to train with; give another --recipe")
    if out.exists():
        raise InputError(f"--out: '{out}' is there already; name a new folder")
    samples, _ = compute(open_inputs(STAGE, lake, snapshot), settings)
    rows = samples_of(samples, "grpo", settings).to_dicts()
    if not rows:
        raise InputError("there are no GRPO samples: run `geofix difficulty` on the approved snapshot first")
    shown = [{**row, "messages_json": row["prompt_json"]} for row in held_out(lake, settings)]
    tools = RECIPES[settings.recipe].tools if settings.grpo.max_turns else ()
    out.parent.mkdir(parents=True, exist_ok=True)
    final, part = out.resolve(), out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        _write_rows(part, "train", rows, lake, settings, tools)
        _write_rows(part, "validation", shown or rows[:1], lake, settings, tools)
        if tools:
            _yaml(part / "tools.yaml", {"tools": [_tool(name, tools, final) for name in sorted(tools)]})
        kept = {name: getattr(config, name).model_dump(mode="json") for name in ("train", "services", "models")}
        _yaml(part / "settings.yaml", {"recipe": settings.recipe, "profile": config.profile, **kept})
        (part / "reward.py").write_text(
            "from tasks.reward.verl_hook import compute_score\n\n__all__ = ['compute_score']\n", encoding="utf-8"
        )
        _yaml(part / "launch.yaml", launch_configuration(settings, final, model, rows, bool(tools), ESTIMATOR))
        script = part / "launch.sh"
        script.write_text(_script(final), encoding="utf-8")
        script.chmod(0o755)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return Written(final, len(rows), len(shown), len(tools))


def start_of(lake: Lake, settings: TrainSettings, snapshot: Snapshot | None = None) -> str:
    """The folder of the model that the GRPO stage starts from: its parent where one is trained, else the base."""
    samples, _ = compute(open_inputs(STAGE, lake, snapshot), settings)
    parents = [link.parent_id for link in chain(samples, settings) if link.training_stage == "grpo"]
    parent = parents[0] if parents else None
    if parent is None:
        if settings.base == "tiny":
            raise InputError("train.base=tiny has no folder that verl could open: name one with --model")
        return str(base_folder(settings.base))
    if finished(lake.blobs.pull(f"{MODELS}/{parent}")) is None:
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
    given: Row = {}
    if tools:
        messages = RECIPES[settings.recipe].opening({"type": "image"}, budgets_of(settings))
        name = f"pictures/{reference[0]}.{reference[1]}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.original)
        given = {"tools_kwargs": {tool: {"create_kwargs": {"picture": name}} for tool in sorted(tools)}}
    return {
        "data_source": f"geofix/{settings.recipe}",
        "prompt": [{"role": turn["role"], "content": _marked(turn["content"])} for turn in messages],
        "images": [{"bytes": picture.view, "path": None}],
        "ability": "geolocation",
        "reward_model": {
            "style": "rule",
            "ground_truth": json.dumps({name: row.get(name) for name in TRUTH_COLUMNS}, ensure_ascii=False),
        },
        "extra_info": {"split": split, "index": index, "need_tools_kwargs": bool(tools), **given},
        "agent_name": "tool_agent" if tools else "single_turn_agent",
        **{name: row.get(name) for name in _CREDIT},
    }


def _schema(tools: Iterable[str]) -> pa.Schema:
    info = [("split", _TEXT), ("index", pa.int64()), ("need_tools_kwargs", pa.bool_())]
    if tools:
        one = pa.struct([("create_kwargs", pa.struct([("picture", _TEXT)]))])
        info.append(("tools_kwargs", pa.struct([(name, one) for name in sorted(tools)])))
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


def _tool(name: str, offered: Iterable[str], folder: Path) -> Row:
    config = {
        "type": "native",
        "tool": name,
        "offered": list(offered),
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
