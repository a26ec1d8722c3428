"""The folder of `geofix verl` in verl's own hands: its reader, its GRPO functions, its configuration, its tools.

verl pins other versions than geofix does. So it is installed without its dependencies into a folder of its own
(`.verl`), with the few packages it needs on a CPU, and the checks run in a process that sees both (`--checks`). Exit
code 77 where it cannot be installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bench.goals import Goal, judge
from bench.training_lake import fill_lake, small_settings
from schemas.config import Config
from schemas.load import load_config
from schemas.settings.train import GrpoSettings
from tasks.imaging.processor import ImageOnlyProcessor
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.reward.advantage import group_advantages
from tasks.reward.outcome import truth_of
from tasks.train.encoding import Encoder, Pictures
from tasks.train.policy_loss import objective, token_weights
from tasks.train.tiny import build_model, build_processor
from tasks.train.verl_folder import AVERAGED, write_verl_folder
from tasks.train.with_tools import environment_maker, opening_prompt

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".verl"
PINNED = (
    "verl==0.9.1",
    "tensordict==0.15.3",
    "hydra-core==1.3.8",
    "omegaconf==2.4.0",
    "antlr4-python3-runtime==4.9.3",
    "codetiming==1.4.0",
    "pyvers==0.2.3",
    "torchdata==0.11.0",
)
MISSING = 77


def install() -> bool:
    """Whether verl lies in its folder, installed if need be."""
    if (FOLDER / "verl").is_dir():
        return True
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", str(FOLDER)]
    links = os.environ.get("PIP_FIND_LINKS")
    uv = Path(sys.executable).with_name("uv")
    command[0] = str(uv) if uv.exists() else "uv"
    return subprocess.run([*command, *(("--find-links", links) if links else ()), *PINNED], check=False).returncode == 0


def check() -> subprocess.CompletedProcess[str]:
    """Run the checks in a process of their own."""
    # Ours first: verl's wheel brings a package `tests` of its own.
    path = os.pathsep.join([str(ROOT), str(FOLDER)])
    quiet = {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="geofix-verl-cache-") as cache:
        own = {
            "PYTHONPATH": path, "VERL_USE_EXTERNAL_PLUGINS": "none", "HF_DATASETS_CACHE": cache,
            "HF_MODULES_CACHE": cache,
        }  # fmt: skip
        command = [sys.executable, "-m", "bench.verl", "--checks"]
        return subprocess.run(command, env={**os.environ, **quiet, **own}, text=True, check=False)


def main(arguments: list[str] | None = None) -> int:
    if not install():
        print("   verl cannot be installed here")
        return MISSING
    return check().returncode


CHECKED = ("spotagent", "geovista", "thinking-with-map")


def configuration(recipe: str, lake: Path) -> Config:
    """The recipe's own figures over a tiny base, services where nothing listens."""
    loaded = load_config(recipe=recipe, lake=str(lake))
    small = small_settings()
    train = loaded.train.model_copy(
        update={name: getattr(small, name) for name in ("tiny", "image_min_pixels", "image_max_pixels")}
    )
    services = loaded.services
    dead = {"base_url": "http://127.0.0.1:9", "max_attempts": 1}
    update = {
        name: getattr(services, name).model_copy(update=dead) for name in ("search", "geocoder", "maps")
    }  # fmt: skip
    return loaded.model_copy(update={"train": train, "services": services.model_copy(update=update)})


def composed(folder: Path, *overrides: str) -> Any:
    """The launch configuration as verl's main program gets it."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(folder), version_base=None):
        return compose("launch", overrides=list(overrides))


def read_back(config: Any, train: Any, rows: int) -> list[Goal]:
    """Every figure of `train.grpo` in the composed configuration, and verl's own check of the whole."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    grpo: GrpoSettings = train.grpo
    actor, rollout, data = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.data
    pairs = [
        (actor.optim.lr, grpo.learning_rate), (actor.clip_ratio, grpo.clip), (rollout.n, grpo.group_size),
        (rollout.temperature, grpo.temperature), (data.max_response_length, grpo.max_completion_tokens),
        (actor.use_kl_loss, grpo.kl > 0), (actor.kl_loss_coef, grpo.kl), (actor.kl_loss_type, "low_var_kl"),
        (actor.loss_agg_mode, AVERAGED[grpo.loss]), (rollout.multi_turn.enable, grpo.max_turns > 0),
        (rollout.multi_turn.max_assistant_turns, grpo.max_turns or None), (config.trainer.total_epochs, 1),
        (config.trainer.test_freq, train.validation_steps), (config.trainer.save_freq, train.save_steps),
        (data.train_batch_size, min(grpo.prompts_per_generation, rows)),
        (actor.ppo_mini_batch_size, min(grpo.prompts_per_step, rows)),
        (rollout.prompt_length, data.max_prompt_length), (config.algorithm.adv_estimator, "geofix_grpo"),
    ]  # fmt: skip
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    with contextlib.redirect_stdout(io.StringIO()):
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(rollout)
    return [Goal(f"figures that differ in the composed configuration {wrong}", len(wrong), at_most=0)]


def read_rows(folder: Path, config: Any, own: Config, lake: Lake, ours: ImageOnlyProcessor) -> list[Goal]:
    """verl's reader, and the processor as it opens it and calls it, against our own encoding of the same questions."""
    from verl.tools.tool_registry import load_all_tools
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
    from verl.utils.tokenizer import build_multimodal_processor_inputs, hf_processor

    # Without torchvision Qwen's own class cannot be opened; the one beside the weights can.
    processor = hf_processor(config.actor_rollout_ref.model.path, trust_remote_code=True)
    assert processor is not None, "verl cannot open the processor of a model's folder"
    processor.chat_template = ours.chat_template = config.actor_rollout_ref.model.custom_chat_template
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = RLHFDataset([config.data.train_files], processor.tokenizer, config.data, processor)
        tools = load_all_tools(config.data.tool_config_path, None) if config.data.tool_config_path else []
    schemas = [one.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for one in tools] or None
    train = own.train
    encoder = Encoder(ours, Pictures(lake.images, train.image_min_pixels, train.image_max_pixels))
    make = environment_maker(train, lake.images, connections(own)) if tools else None
    samples = {row["image_id"]: row for row in samples_of_lake(lake, own)}
    differing = leaks = 0
    for number in range(len(dataset)):
        row = dataset[number]
        messages = row["raw_prompt"]
        shown = [
            part["image"] for turn in messages for part in turn["content"] if isinstance(part, dict) and "image" in part
        ]
        text = processor.apply_chat_template(messages, tools=schemas, add_generation_prompt=True, tokenize=False)
        found = build_multimodal_processor_inputs(processor, text=[text], images=shown)
        sample = samples[row["image_id"]]
        mine = opening_prompt(make(sample), encoder) if make else encoder.prompt(sample["messages_json"])
        same = found["input_ids"][0].tolist() == list(mine.ids) and torch.equal(found["pixel_values"], mine.pixels)
        differing += not same
        truth = json.loads(row["reward_model"]["ground_truth"])
        seen = text + json.dumps(row["extra_info"])
        leaks += any(str(truth[name]) in seen for name in ("lat", "lon", "city"))
    collate_fn([dataset[0], dataset[1]])
    return [
        Goal(f"rows that verl's reader found, of {len(samples)}", len(dataset), at_least=len(samples)),
        Goal("questions whose tokens or patches differ from ours", differing, at_most=0),
        Goal("questions that hold their truth", leaks, at_most=0),
    ]


def samples_of_lake(lake: Lake, own: Config) -> list[dict[str, Any]]:
    from tasks.runtime.stage import open_inputs
    from tasks.train.chain import samples_of
    from tasks.train.samples import STAGE, compute

    return samples_of(compute(open_inputs(STAGE, lake), own.train)[0], "grpo", own.train).to_dicts()


def connections(own: Config) -> Any:
    from tasks.services import connect

    return connect(own.services, {}, ())


def score(config: Any, folder: Path) -> list[Goal]:
    """verl's own loader of reward functions: the true answer has the most a recipe gives, an outage excludes."""
    import pyarrow.parquet as pq
    from verl.trainer.ppo.reward import get_custom_reward_fn

    hook = get_custom_reward_fn(config)
    assert hook is not None
    most = {"geovista": 4.0}.get(config.trainer.experiment_name.removesuffix("-grpo"), 1.0)
    worst, wrong = math.inf, 0.0
    for row in pq.read_table(folder / "train.parquet").to_pylist():
        truth = json.loads(row["reward_model"]["ground_truth"])
        gold = RECIPES[row["data_source"].rpartition("/")[2]].gold(truth_of(truth), 6)
        turns = f"<tool_call>x</tool_call>user\n<tool_response>\nCountry: Nowhere\n</tool_response>\nassistant\n{gold}"
        given: dict[str, Any] = {"data_source": row["data_source"], "ground_truth": row["reward_model"]["ground_truth"]}
        for text in (gold, turns):
            worst = min(worst, hook(solution_str=text, extra_info=row["extra_info"], **given)["score"] / most)
        wrong = max(wrong, hook(solution_str="I do not know.", extra_info={}, **given)["score"])
        lost = hook(solution_str=gold, extra_info={"tool_outage": "outage"}, **given)
        assert math.isnan(lost["score"]) and lost["excluded"]
    return [
        Goal("reward of the true answers, as a share of the most", worst, at_least=1.0, at_most=1.0),
        Goal("reward of no answer", wrong, at_most=0.0),
    ]


def call_tools(config: Any, folder: Path) -> list[Goal]:
    """verl's tool agent calls our tools: a region comes back as a picture, a dead service is told to the reward."""
    import pyarrow.parquet as pq
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall
    from verl.tools.tool_registry import load_all_tools

    with contextlib.redirect_stdout(io.StringIO()):
        tools = load_all_tools(config.data.tool_config_path, None)
    loop = ToolAgentLoop.__new__(ToolAgentLoop)  # its constructor asks for a model server
    loop.tools = {tool.name: tool for tool in tools}
    loop.max_tool_response_length = config.actor_rollout_ref.rollout.multi_turn.max_tool_response_length
    loop.tool_response_truncate_side = "middle"
    given = pq.read_table(folder / "train.parquet").to_pylist()[0]["extra_info"]["tools_kwargs"]
    zoom = next(name for name in loop.tools if name.startswith("image_zoom"))
    asked = {
        "search_web": {"query": "x"}, "maps_geocode": {"address": "x"}, "poi_input_tips": {"text": "x"},
        "poi_keyword_search": {"keyword": "x"},
    }  # fmt: skip
    service = next(name for name in loop.tools if name in asked)

    async def call(name: str, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        data = SimpleNamespace(extra_fields={})
        response, _, _ = await loop._call_tool(FunctionCall(name=name, arguments=json.dumps(arguments)), given, data)
        return response, data.extra_fields

    async def both() -> tuple[Any, ...]:
        seen = await call(zoom, {"bbox_2d": [0, 0, 20, 20]})
        return *seen, *await call(service, asked[service])

    region, _, failed, told = asyncio.run(both())
    return [
        Goal("pictures that a zoom returned to verl", len(region.image or []), at_least=1, at_most=1),
        Goal(f"outages that verl was told of ({failed.text}, {told})", len(told), at_least=1),
    ]


def formulas(seed: int = 0) -> list[Goal]:
    """GRPO's advantage, KL and loss with its gradient, verl's beside ours, and the estimator that outages leave."""
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import (
        agg_loss,
        compute_grpo_outcome_advantage,
        compute_policy_loss_vanilla,
        kl_penalty,
    )
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.workers.config import FSDPActorConfig

    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    index = np.array([f"image-{g}" for g in range(300) for _ in range(rng.integers(1, 17))], dtype=object)
    rng.shuffle(index)
    rewards = np.where(rng.random(len(index)) < 0.5, rng.random(len(index)), rng.choice([0.0, 0.1, 0.8, 1], len(index)))
    tokens = torch.zeros(len(index), 3, dtype=torch.float64)
    tokens[:, -1] = torch.tensor(rewards)
    theirs = compute_grpo_outcome_advantage(tokens, torch.ones_like(tokens), index)[0][:, 0].numpy()
    found = [
        Goal(
            "advantage, difference", np.abs(theirs - group_advantages(rewards, list(index)).values).max(), at_most=1e-5
        )
    ]

    lost = rng.random(len(index)) < 0.2
    tokens[torch.tensor(lost), -1] = math.nan
    data = DataProto(
        TensorDict({"token_level_rewards": tokens, "response_mask": torch.ones_like(tokens)}, [len(index)]),
        {"uid": index},
    )
    told = compute_advantage(data, "geofix_grpo").batch["advantages"][:, 0].numpy()
    ours = group_advantages(np.where(lost, math.nan, rewards), list(index)).values
    found.append(Goal("advantage with excluded rollouts, difference", np.abs(told - ours).max(), at_most=1e-5))

    count, longest = 12, 20
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    mask = (torch.arange(longest)[None] < lengths[:, None]).double()
    old = torch.randn(count, longest, generator=generator, dtype=torch.float64) - 2
    reference = old + 0.3 * torch.randn(count, longest, generator=generator, dtype=torch.float64)
    moved = old + 0.9 * torch.randn(count, longest, generator=generator, dtype=torch.float64)
    advantages = torch.randn(count, generator=generator, dtype=torch.float64)
    for loss, mode in AVERAGED.items():
        config = FSDPActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2, clip_ratio_c=1e9,
            loss_agg_mode=mode, loss_scale_factor=longest,
        )  # fmt: skip
        new = moved.clone().requires_grad_()
        policy, _ = compute_policy_loss_vanilla(
            old, new, advantages[:, None].expand(-1, longest), mask, loss_agg_mode=mode, config=config
        )
        penalty = agg_loss(kl_penalty(new, reference, "low_var_kl"), mask, mode, loss_scale_factor=longest)
        total = policy + 0.05 * penalty
        total.backward()
        mine = moved.clone().requires_grad_()
        weights = torch.tensor(token_weights(lengths.tolist(), [True] * count, loss, longest), dtype=torch.float64)  # type: ignore[arg-type]
        flat = mask.bool()
        spread = [x[:, None].expand(-1, longest)[flat] for x in (advantages, weights)]
        made = objective(mine[flat], old[flat], reference[flat], *spread, 0.2, 0.05)
        made.loss.backward()
        assert new.grad is not None and mine.grad is not None
        found.append(Goal(f"loss ({loss}), difference", abs(float(total - made.loss)), at_most=1e-5))
        found.append(Goal(f"gradient ({loss}), difference", float((new.grad - mine.grad).abs().max()), at_most=1e-5))
    return found


def run_checks() -> int:
    import verl

    import tasks.train.verl_estimator  # noqa: F401 - as VERL_USE_EXTERNAL_MODULES does in verl's processes

    print(f"   verl {verl.__version__}")
    goals = formulas()
    with tempfile.TemporaryDirectory(prefix="geofix-verl-") as name:
        root = Path(name)
        lake = Lake(root / "lake")
        fill_lake(lake, pictures=8, held_out=2)
        tiny = small_settings()
        processor = build_processor(
            ["Where was this picture taken?"], tiny.tiny, tiny.image_min_pixels, tiny.image_max_pixels
        )
        build_model(processor, tiny.tiny, 0).save_pretrained(root / "model")
        processor.save_pretrained(root / "model")
        for recipe in CHECKED:
            own = configuration(recipe, root / "lake")
            written = write_verl_folder(lake, own, root / recipe, str(root / "model"))
            folder = written.folder
            config = composed(folder, "trainer.n_gpus_per_node=1")
            some = [
                *read_back(config, own.train, written.train),
                *read_rows(folder, config, own, lake, processor),
                *score(config, folder),
            ]
            some += call_tools(config, folder) if own.train.grpo.max_turns else []
            goals += [Goal(f"{recipe}: {one.what}", one.found, one.at_least, one.at_most) for one in some]
    for goal in goals:
        print(f"   {goal.what}: {goal.found:.3g}", flush=True)
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(run_checks() if "--checks" in sys.argv else main())
