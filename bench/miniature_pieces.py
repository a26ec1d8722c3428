"""The pieces of the miniature after its base: data, SFT, cold start, Pass@K, GRPO. Each returns its figures."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tasks.difficulty.regime import measure, table8
from tasks.difficulty.report import groups
from tasks.reward.spotagent import reward_at

MORE_PATIENCE_S = 2


def data(folder: Path, size: Any, seed: int) -> dict[str, Any]:
    """Panoramas with their truth, painted on all cores; for training places the teacher's trajectories."""
    from infra.pretrain.panoramas import outcomes, paint_all
    from infra.pretrain.world_tools import geocoder_of, toolbox_of

    world, train, held = chosen(size)
    cores = os.cpu_count() or 1
    geocoder = geocoder_of(world, ready=True)  # before processes are forked: they share its index
    paint_all(world, train, folder / "train", cores, toolbox_of(geocoder))
    paint_all(world, held, folder / "held", cores)
    paint_all(world, held, folder / "blank", cores, text=False)
    return {"asked": len(train), "held_out": len(held), "trajectories": outcomes(folder / "train", train)}


def chosen(size: Any) -> tuple[Any, list[Any], list[Any]]:
    """The world, and the pictures of training and held-out places."""
    from infra.offline.world import World
    from infra.pretrain.panoramas import WORLD_SEED, WORLD_SIZE, choose

    world = World(WORLD_SEED, WORLD_SIZE)
    return world, choose(world, size.train, False, 0), choose(world, size.held_out, True, 0)


def sft(folder: Path, size: Any, seed: int) -> dict[str, Any]:
    """SFT from the base and from noise on the same pictures for the same time, each with its controls."""
    from infra.offline.world import World
    from infra.pretrain.feed import Pool
    from infra.pretrain.ladder import Prompt, accuracy, constant_rows, locate, tune
    from infra.pretrain.model import Learner
    from infra.pretrain.training import Made, Plan, choose_places, paint_held_out, run
    from tasks.agent.recipes.spotsft import RECIPE

    base, scratch = folder / "base", folder / f"sft-{seed}-scratch"
    processes = max(2, (os.cpu_count() or 2) - 1)
    plan = Plan(seconds=1, steps=0, board_processes=1, paint_processes=processes - 1, seed=seed)
    found: dict[str, Any] = {}
    world = World(plan.world_seed, plan.world_size)  # painted before the GPU is touched: then no process is forked
    paint_held_out(world, choose_places(world, plan)[1], plan, scratch / "blank", text=False)

    def measured(made: Made) -> None:
        blank = Pool(scratch / "blank", made.learner.device)
        blank.refresh(1e9)
        while made.pool.refresh(10.0) < size.sft_pictures:
            time.sleep(MORE_PATIENCE_S)
        prompt = Prompt.of(made.tokens, RECIPE.system, RECIPE.question)
        found["constant"] = accuracy(constant_rows(made.pool, made.held, made.world))
        noise = Learner(base, 1, 1)  # the same shape and tokenizer, its weights drawn anew
        for name, learner, rate in (("base", made.learner, 5e-4), ("noise", noise, 1e-3)):
            found[f"{name} before"] = accuracy(locate(learner, made.held, made.world, made.tokens, prompt))
            tune(learner, made.pool, made.world, made.tokens, prompt, size.sft_s, rate, 128, 0)
            found[name] = accuracy(locate(learner, made.held, made.world, made.tokens, prompt))
            found[f"{name} shuffled"] = accuracy(
                locate(learner, made.held, made.world, made.tokens, prompt, shuffle=True)
            )
            found[f"{name} no text"] = accuracy(locate(learner, blank, made.world, made.tokens, prompt))

    run(base, plan, scratch, folder, measured)
    shutil.rmtree(scratch, ignore_errors=True)
    return {"rows": found}


def cold(folder: Path, size: Any, seed: int) -> dict[str, Any]:
    """Lessons in quoting, then the cold start on trajectories; measured before and after each, with controls."""
    from infra.pretrain.agent import measured, open_agent, reading_lessons, save_agent
    from infra.pretrain.agent_figures import ceiling
    from infra.pretrain.cold_start import Pupil, cold_start, lesson_of, practise
    from infra.pretrain.panoramas import rows_of, trajectory_of
    from infra.pretrain.teacher import opened
    from infra.pretrain.world_tools import WrongGeocoder, geocoder_of, toolbox_of

    world, train, held = chosen(size)
    geocoder = geocoder_of(world)
    tools, wrong = toolbox_of(geocoder), toolbox_of(WrongGeocoder(geocoder, world, seed))
    rows, held_rows = rows_of(folder / "train", train), rows_of(folder / "held", held)
    taught = [trajectory_of(row) for row in rows if row["outcome"] == "kept"]
    if not taught:
        raise SystemExit("no trajectory was kept: more places are needed")
    log: list[dict[str, Any]] = []

    def say(stage: str) -> Any:
        return lambda found: log.append({"stage": stage, **found})

    agent = open_agent(folder / "base", seed)
    found = {"ceiling": ceiling(held_rows, geocoder)}
    found["before"] = measured(agent, held_rows, tools, size.tokens)["agent"]
    lessons = [lesson_of(one, agent.encoder, agent.tokens) for one in taught]
    backgrounds = [_picture(opened(row["file"]).view) for row in rows[:24]]
    reading = reading_lessons(agent, [world.place(one.place) for one in train], backgrounds, size.boards, seed)
    practise(Pupil(agent.fast, 1e-3, seed), agent.tokens, reading, size.quote_s, say("quote"))
    found["after quoting"] = measured(agent, held_rows, tools, size.tokens)["agent"]
    cold_start(Pupil(agent.fast, 5e-4, seed), lessons, agent.tokens, size.cold_s, size.batch, True, say("cold"))
    blank = [row["file"] for row in rows_of(folder / "blank", held)]
    found |= measured(agent, held_rows, tools, size.tokens, wrong, blank)
    shutil.rmtree(folder / f"agent-{seed}", ignore_errors=True)
    save_agent(agent, folder / f"agent-{seed}")
    (folder / f"cold-{seed}-log.json").write_text(json.dumps(log), encoding="utf-8")
    return {"rows": found, "trajectories": len(lessons)}


def passk(folder: Path, size: Any, seed: int) -> dict[str, Any]:
    """K attempts at pictures of training places; learnable are those that succeed sometimes (SpotAgent 3.3.1)."""
    from infra.pretrain.agent import open_agent, tried_often
    from infra.pretrain.panoramas import rows_of
    from infra.pretrain.world_tools import geocoder_of, toolbox_of

    world, train, _ = chosen(size)
    rows = rows_of(folder / "train", train)[: size.passk_places]
    agent = open_agent(folder / f"agent-{seed}", seed)
    errors = tried_often(agent, rows, toolbox_of(geocoder_of(world)), size.k, size.tokens)
    regimes = [measure(one, (25.0,), (25.0,)).regimes[0] for one in errors]
    counts = {name: regimes.count(name) for name in ("mastered", "learnable", "intractable")}
    learnable = [row["image_id"] for row, name in zip(rows, regimes, strict=True) if name == "learnable"]
    return {"k": size.k, "regimes": counts, "learnable": learnable, **difficulty(errors)}


def difficulty(errors: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """SpotAgent's Table 8, and the groups without reward variance before and after the filter (eq. 8's reward)."""
    thresholds = (1.0, 25.0, 200.0, 750.0)
    found = [measure(one, thresholds, thresholds[:2]) for one in errors]
    rewards = [[0.0 if error is None else reward_at(error) for error in one] for one in errors]
    table = pl.DataFrame(
        {
            "threshold_km": [list(thresholds)] * len(found),
            "regimes": [list(one.regimes) for one in found],
            "learnable": [one.kept for one in found],
            "reward_varies": [len(set(one)) > 1 for one in rewards],
        }
    ).with_columns(kept=pl.col("learnable") & pl.col("reward_varies"))
    return {"table8": table8(table).to_dicts(), "groups": groups(table).to_dicts()}


def grpo(folder: Path, size: Any, seed: int) -> dict[str, Any]:
    """GRPO with tools on learnable and on random pictures, equal steps; measured on held-out places."""
    from infra.pretrain.agent import measured, open_agent, reinforce, save_agent
    from infra.pretrain.panoramas import rows_of
    from infra.pretrain.world_tools import geocoder_of, toolbox_of

    world, train, held = chosen(size)
    tools = toolbox_of(geocoder_of(world))
    rows, held_rows = rows_of(folder / "train", train)[: size.passk_places], rows_of(folder / "held", held)
    wanted = set(json.loads((folder / f"passk-{seed}.json").read_text(encoding="utf-8"))["learnable"])
    learnable = [row for row in rows if row["image_id"] in wanted]
    drawn = random.Random(seed).sample(rows, min(len(rows), max(len(learnable), size.grpo_prompts)))
    found: dict[str, Any] = {}
    for name, used in (("filtered", learnable or drawn), ("random", drawn)):
        agent = open_agent(folder / f"agent-{seed}", seed)
        log: list[dict[str, float]] = []
        reinforce(
            agent, used, tools, size.grpo_steps, size.group, size.grpo_prompts, 5e-6, seed, size.tokens, log.append
        )
        found[name] = measured(agent, held_rows, tools, size.tokens)["agent"]
        shutil.rmtree(folder / f"grpo-{seed}-{name}", ignore_errors=True)
        save_agent(agent, folder / f"grpo-{seed}-{name}")
        (folder / f"grpo-{seed}-{name}-log.json").write_text(json.dumps(log), encoding="utf-8")
    return {"rows": found, "learnable": len(learnable), "random": len(drawn)}


def _picture(jpeg: bytes) -> Any:
    import io

    from PIL import Image

    return Image.open(io.BytesIO(jpeg)).convert("RGB")
