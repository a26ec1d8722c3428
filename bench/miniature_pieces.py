"""The pieces of the miniature after its base: data, SFT, cold start, controls, Pass@K, GRPO. Each returns figures."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from bench.miniature_size import Size
from infra.offline.world import World
from infra.pretrain.agent import (
    Agent,
    Going,
    measured,
    of_others,
    open_agent,
    reading_lessons,
    reinforce,
    save_agent,
    tried_often,
)
from infra.pretrain.agent_figures import ceiling
from infra.pretrain.cold_start import Pupil, answer_lesson, lesson_of, quotes, study
from infra.pretrain.panoramas import (
    VIEW,
    WORLD_SEED,
    WORLD_SIZE,
    choose,
    outcomes,
    paint_all,
    paint_views,
    rows_of,
    trajectory_of,
)
from infra.pretrain.teacher import WrongGeocoder, geocoder_of, opened, toolbox_of
from tasks.agent.prompt import DIRECT as AT_ONCE
from tasks.agent.tools import Geocodes
from tasks.recipes.spotagent.reward import reward_at

MEASURING_S = 120  # after GRPO's last step
Rows = list[dict[str, Any]]
Say = Callable[[Mapping[str, Any]], None]


class Field:
    """Held-out cells of a further world: the same Earth with other streets and signs, and its own geocoder.

    What GRPO brings is small beside how places differ, and one world has too few of them to tell.
    """

    def __init__(self, seed: int, size: Size) -> None:
        self.name, self.world = f"held-{seed}", World(seed, WORLD_SIZE)
        self.tools = toolbox_of(geocoder_of(self.world, ready=True))
        self.records = choose(self.world, size.held_out, True, 0)


class Ground:
    """The world with its geocoder, and which pictures serve what; made once for all pieces of a run."""

    def __init__(self, size: Size, until: float) -> None:
        self.size, self.until = size, until
        self.world = World(WORLD_SEED, WORLD_SIZE)
        self.geocoder: Geocodes = geocoder_of(self.world, ready=True)  # before processes are forked: they share it
        self.tools = toolbox_of(self.geocoder)
        asked = choose(self.world, size.train + size.practice + size.views, False, 0)
        self.train, asked = asked[: size.train], asked[size.train :]
        self.practice, self.views = (
            asked[: size.practice],
            asked[size.practice :],
        )  # GRPO practises on places of its own
        self.held = choose(self.world, size.held_out, True, 0)
        self.further = {f"held-{seed}": Field(seed, size) for seed in size.further}

    def rows(self, folder: Path, name: str) -> Rows:
        if name == "views":
            return rows_of(folder / name, self.views, VIEW)
        records = {"train": self.train, "practice": self.practice, "held": self.held, "blank": self.controls}
        return rows_of(folder / name, records[name])

    @property
    def controls(self) -> list[Any]:
        return self.held[: self.size.controls]

    @property
    def places(self) -> list[Any]:
        return [self.world.place(one.place) for one in self.train]


def train(folder: Path, ground: Ground) -> dict[str, Any]:
    """Panoramas of training places, painted on all cores, with the teacher's trajectories."""
    paint_all(ground.world, ground.train, folder / "train", os.cpu_count() or 1, ground.tools)
    return {"asked": len(ground.train), "trajectories": outcomes(folder / "train", ground.train)}


def views(folder: Path, ground: Ground) -> dict[str, Any]:
    """Views of further places, for SFT: what answers at once needs no picture to zoom into."""
    paint_views(ground.world, ground.views, folder / "views", os.cpu_count() or 1)
    return {"pictures": len(ground.views)}


def pictures(folder: Path, ground: Ground, name: str) -> dict[str, Any]:
    """Panoramas to measure with (`held`, and `blank`: the same without a word) or to practise on, with their truth.

    Practice has no picture of a street that the geocoder places elsewhere: every attempt at it would earn nothing.
    """
    records = {"practice": ground.practice, "held": ground.held, "blank": ground.controls}[name]
    tools = ground.tools if name == "practice" else None
    paint_all(ground.world, records, folder / name, os.cpu_count() or 1, tools, name != "blank", teaches=False)
    return {"asked": len(records), "pictures": len(ground.rows(folder, name))}


def further(folder: Path, field: Field) -> dict[str, Any]:
    """Panoramas of another world's held-out places."""
    paint_all(field.world, field.records, folder / field.name, os.cpu_count() or 1)
    return {"pictures": len(field.records)}


def untrained(folder: Path, ground: Ground) -> dict[str, Any]:
    """The base before any stage, and what an agent would find that reads every plate."""
    held, tokens = ground.rows(folder, "held"), ground.size.tokens
    agent = open_agent(folder / "base")
    return {
        "rows": {
            "ceiling": ceiling(held, ground.geocoder),
            "base, with tools": measured(agent, held, ground.tools, tokens),
            "base, at once": measured(agent, held, ground.tools, tokens, AT_ONCE),
        }
    }


def stages(folder: Path, ground: Ground, seed: int) -> dict[str, Any]:
    """SFT (answers at once), then cold starts on few trajectories and on all, in one process: it sees a picture once.

    GRPO goes on from the few, as trajectories are what is dear; the other says what more of them would have brought.
    """
    size, rows = ground.size, ground.rows(folder, "train")
    taught = [row for row in rows if row["outcome"] == "kept"]
    if not taught:
        raise SystemExit("no trajectory was kept: more places are needed")
    agent = open_agent(folder / "base")
    rehearsals = rehearsed(agent, ground, rows, seed)
    answers = [answer_lesson(row, agent.encoder) for row in [*rows, *ground.rows(folder, "views")]]
    study(Pupil(agent.fast, 5e-4, seed), answers, size.sft_s, 2 * size.batch, rehearsals, curve(folder, f"sft-{seed}"))
    keep(agent, folder / f"sft-{seed}")
    weights = {name: weight.clone() for name, weight in agent.fast.model.state_dict().items()}
    lessons = [lesson_of(trajectory_of(row), agent.encoder) for row in taught]
    random.Random(seed).shuffle(lessons)
    for name, some, seconds in (("cold", lessons[: size.few], size.few_s), ("more", lessons, size.cold_s)):
        agent.fast.model.load_state_dict(weights)
        study(Pupil(agent.fast, 5e-4, seed), some, seconds, size.batch, rehearsals, curve(folder, f"{name}-{seed}"))
        keep(agent, folder / f"{name}-{seed}")
    return {"pictures": len(answers), "few": len(lessons[: size.few]), "trajectories": len(lessons)}


def sft(folder: Path, ground: Ground, seed: int) -> dict[str, Any]:
    """What the model after SFT finds."""
    tokens, held = ground.size.tokens, ground.rows(folder, "held")
    agent = open_agent(folder / f"sft-{seed}")
    return {
        "rows": {
            "at once": measured(agent, held, ground.tools, tokens, AT_ONCE),
            "pictures of other places": measured(agent, held, ground.tools, tokens, AT_ONCE, files=of_others(held)),
            "with tools": measured(agent, held, ground.tools, tokens),
        }
    }


def agent(folder: Path, ground: Ground, model: str) -> dict[str, Any]:
    """What an agent finds: its likeliest replies, and at fewer places sampled ones as GRPO draws them."""
    tokens, held = ground.size.tokens, ground.rows(folder, "held")
    opened = open_agent(folder / model)
    some = held[: ground.size.controls]
    return {
        "rows": {
            "agent": measured(opened, held, ground.tools, tokens),
            "agent, sampled": measured(opened, some, ground.tools, tokens, temperature=1.0),
        }
    }


def abroad(folder: Path, ground: Ground, model: str, field: Field) -> dict[str, Any]:
    """What an agent finds in a further world."""
    rows = rows_of(folder / field.name, field.records)
    return {"rows": {"agent": measured(open_agent(folder / model), rows, field.tools, ground.size.tokens)}}


def more(folder: Path, ground: Ground, seed: int) -> dict[str, Any]:
    """What the agent finds after a cold start on all trajectories instead of a few."""
    agent = open_agent(folder / f"more-{seed}")
    return {"rows": {"agent": measured(agent, ground.rows(folder, "held"), ground.tools, ground.size.tokens)}}


def controls(folder: Path, ground: Ground, seed: int, name: str) -> dict[str, Any]:
    """What a trained agent finds with other pictures, boards without a word, no tools, tools that answer wrongly."""
    tokens, held = ground.size.tokens, ground.rows(folder, "held")[: ground.size.controls]
    agent = open_agent(folder / f"{name}-{seed}")
    wrong = toolbox_of(WrongGeocoder(ground.geocoder, ground.world, seed))
    blank = [row["file"] for row in ground.rows(folder, "blank")]
    return {
        "rows": {
            "pictures of other places": measured(agent, held, ground.tools, tokens, files=of_others(held)),
            "boards without a word": measured(agent, held, ground.tools, tokens, files=blank),
            "no tools": measured(agent, held, ground.tools, tokens, AT_ONCE),
            "tools that answer wrongly": measured(agent, held, wrong, tokens),
        }
    }


def passk(folder: Path, ground: Ground, seed: int, part: int) -> dict[str, Any]:
    """K attempts at each practice picture of a part; learnable are those that succeed sometimes (SpotAgent 3.3.1)."""
    rows = ground.rows(folder, "practice")[part :: ground.size.parts]
    agent = open_agent(folder / f"cold-{seed}")
    errors = tried_often(agent, rows, ground.tools, ground.size.k, ground.size.tokens)
    return {"errors": {row["image_id"]: one for row, one in zip(rows, errors, strict=True)}}


def attempts_of(folder: Path, seed: int) -> dict[str, list[float | None]]:
    """The errors in km of all attempts, by picture."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"passk-{seed}-*.json"))]
    return {name: one for part in parts for name, one in part["errors"].items()}


def learnable(errors: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Pictures that some attempts place within 25 km and some do not, by the pipeline's own filter."""
    from tasks.difficulty.regime import measure_difficulty

    return [name for name, one in errors.items() if measure_difficulty(one, (25.0,), (25.0,)).kept]


def difficulty(errors: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """SpotAgent's Table 8, and the groups without reward variance before and after the filter (eq. 8's reward)."""
    import polars as pl

    from tasks.difficulty.regime import measure_difficulty, table8
    from tasks.difficulty.report import groups

    thresholds = (1.0, 25.0, 200.0, 750.0)
    found = [measure_difficulty(one, thresholds, thresholds[:2]) for one in errors]
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


def grpo(folder: Path, ground: Ground, seed: int, arm: str) -> dict[str, Any]:
    """GRPO with tools on the learnable pictures (`grpo`) or on any (`random`)."""
    size, rows = ground.size, ground.rows(folder, "practice")
    wanted = set(learnable(attempts_of(folder, seed)))
    used = [row for row in rows if row["image_id"] in wanted or arm == "random"] or rows
    random.Random(seed).shuffle(used)
    agent, going = open_agent(folder / f"cold-{seed}"), Going(folder / f"{arm}-{seed}.going")
    steps = reinforce(
        agent, used, ground.tools, size.grpo_steps, size.group, size.grpo_prompts, size.grpo_rate, seed, size.tokens,
        curve(folder, f"{arm}-{seed}", going.steps), max(1.0, ground.until - time.monotonic() - MEASURING_S), going,
    )  # fmt: skip
    keep(agent, folder / f"{arm}-{seed}")
    return {"pictures": len(used), "steps": steps}


def rehearsed(agent: Agent, ground: Ground, rows: Rows, seed: int) -> list[Any]:
    """What is practised among new lessons: reading boards and quoting records, as a base's own data would be."""
    backgrounds = [Image.open(io.BytesIO(opened(row["file"]).view)).convert("RGB") for row in rows[:24]]
    reading = reading_lessons(agent, ground.places, backgrounds, ground.size.boards, seed)
    return [reading, quotes(agent.tokens, agent.fast.device, random.Random(seed))]


def keep(agent: Agent, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    save_agent(agent, folder)


def curve(folder: Path, name: str, kept: int = 0) -> Say:
    """Writes figures as they come, one JSON line each, after so many lines of a run that is gone on with."""
    file = folder / f"{name}.curve.jsonl"
    before = file.read_text(encoding="utf-8").splitlines(keepends=True)[:kept] if file.is_file() else []
    file.write_text("".join(before), encoding="utf-8")

    def say(found: Mapping[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(found) + "\n")

    return say
