"""The small agent: opened from a base, cold-started on trajectories, measured, tried K times, improved by GRPO."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from infra.pretrain.agent_figures import attempts, figures, maker
from infra.pretrain.boards import LEVELS, crop_board, lesson, letters_of, pieces_of
from infra.pretrain.cold_start import Pupil, SeeingEncoder, freeze_sight
from infra.pretrain.model import copy_texts
from infra.pretrain.pictures import READ
from infra.pretrain.tokens import IGNORED, Tokens
from schemas.settings.train import GrpoSettings, TrainSettings
from tasks.agent.environment import Environment
from tasks.agent.prompt import Prompt
from tasks.agent.render import chat_template
from tasks.agent.toolbox import Toolbox
from tasks.imaging.processor import load_processor
from tasks.recipes.spotmini import MAX_PIXELS, MIN_PIXELS, PROMPT, REPLY_TOKENS
from tasks.train.checkpoints import Progress
from tasks.train.fast.families import fast_model
from tasks.train.fast.model import FastModel
from tasks.train.fast.packing import Packed, Sample, pack
from tasks.train.grpo import Grpo, Reference
from tasks.train.loop import seed_step
from tasks.train.rollouts.source import Engines, recipe_scorer
from tasks.train.with_tools import ToolRollouts, opening_prompt

Row = dict[str, Any]
EVERY = 20  # steps of GRPO after which it is kept


@dataclass
class Agent:
    """A model with everything that shows it conversations."""

    fast: FastModel
    encoder: SeeingEncoder
    tokens: Tokens
    folder: Path  # whose configuration and tokenizer it has


def open_agent(folder: Path) -> Agent:
    """The model of a folder, its vision tower frozen."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    cuda = torch.cuda.is_available()
    model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.bfloat16 if cuda else torch.float32
    )
    fast = fast_model(model.to("cuda" if cuda else "cpu"), compile_layers=False)
    processor = load_processor(str(folder), MIN_PIXELS, MAX_PIXELS)
    processor.chat_template = chat_template()
    return Agent(fast, SeeingEncoder(processor, None, freeze_sight(fast)), Tokens(folder / "tokenizer.json"), folder)


def save_agent(agent: Agent, output: Path) -> None:
    """The agent as a folder that any loader of Qwen2.5-VL opens; appears whole."""
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    agent.fast.model.save_pretrained(partial)
    copy_texts(agent.folder, partial)
    partial.rename(output)


def reading_lessons(
    agent: Agent, places: Sequence[Any], backgrounds: Sequence[Image.Image], count: int, seed: int
) -> Callable[[], Packed]:
    """Batches of boards to read, so that reading is not forgotten while other things are learned."""
    rng, letters = random.Random(seed), letters_of(places)
    background = pieces_of(backgrounds, rng)
    samples: list[Sample] = []
    while len(samples) < count:
        board, line, size = lesson(len(LEVELS) - 1, places, letters, rng)
        crop = crop_board(board, line, size, background, rng)
        pixels, grids = agent.encoder.patches([Image.fromarray(crop.pixels)])
        image = [agent.tokens.image] * (grids[0][1] * grids[0][2] // 4)
        before = [*agent.tokens.opening, *image, *agent.tokens.asked(READ[crop.line])]
        said = [*agent.tokens.spelled(" ".join(crop.text.split())), agent.tokens.end]
        samples.append(Sample([*before, *said], [*[IGNORED] * len(before), *said], pixels, grids))
    return lambda: pack(rng.sample(samples, min(16, count)), agent.fast.image_token, agent.fast.merge).to(
        agent.fast.device
    )


def measured(
    agent: Agent,
    rows: Sequence[Row],
    tools: Toolbox,
    tokens: int,
    recipe: Prompt = PROMPT,
    files: Sequence[str] | None = None,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """The agent's figures on these places, one attempt each; `files` shows other pictures than the rows' own."""
    with torch.no_grad():
        tried = attempts(
            agent.fast, agent.encoder, rows, tools, recipe, files=files, tokens=tokens, temperature=temperature
        )
    return figures([one for [one] in tried], rows)


def of_others(rows: Sequence[Row]) -> list[str]:
    """For each row the picture of another place: the one half of the list away."""
    files = [row["file"] for row in rows]
    return [*files[len(files) // 2 :], *files[: len(files) // 2]]


def reinforce(
    agent: Agent,
    rows: Sequence[Row],
    tools: Toolbox,
    steps: int,
    size: int,
    prompts: int,
    rate: float,
    seed: int,
    tokens: int,
    say: Callable[[dict[str, float]], None],
    seconds: float = math.inf,
    going: Going | None = None,
) -> int:
    """GRPO with tools, by the trainer of the pipeline, on these rows for n steps or seconds; how many steps it was.

    The rate falls to a tenth towards the end, whichever of the two comes first. It goes on from what `going` holds; the
    reference is the agent as it is given.
    """
    settings = TrainSettings(
        seed=seed, image_max_pixels=MAX_PIXELS, image_min_pixels=MIN_PIXELS, loader_threads=0,
        pack_tokens=65_536,
        grpo=GrpoSettings(
            group_size=size, prompts_per_generation=prompts, prompts_per_step=prompts, learning_rate=rate,
            max_turns=PROMPT.budgets.turns, max_completion_tokens=tokens, max_steps=steps, kl=0.01, micro_batch=64,
        ),
    )  # fmt: skip
    made: list[Environment] = []
    make = maker({row["image_id"]: row["file"] for row in rows}, tools, PROMPT, made)
    rollouts = ToolRollouts(
        Engines(agent.fast, agent.encoder.end_tokens, size * prompts), agent.encoder, make, size, tokens,
        PROMPT.budgets.turns, 1.0, REPLY_TOKENS,
    )  # fmt: skip

    def encode(number: int) -> Sample:
        return opening_prompt(make(rows[number]), agent.encoder)

    reference = Reference(agent.fast, False, False)
    assert isinstance(reference.fast, FastModel)
    reference.fast.pictures = agent.fast.pictures  # type: ignore[method-assign]
    program = Grpo(agent.fast, encode, rows, settings, rollouts, recipe_scorer("spotagent"), reference)
    pupil, progress = Pupil(agent.fast, rate, seed), Progress()
    first = 0 if going is None else going.opened(agent, pupil)
    began = time.monotonic()
    for step in range(first, steps):
        spent = time.monotonic() - began
        if spent > seconds:
            return step
        made.clear()
        seed_step(seed, step)
        found = program.gradients(step, progress)
        for group in pupil.optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step - first + 1) / 4) * (1.0 - 0.9 * max(step / steps, spent / seconds))
        pupil.optimizer.step()
        pupil.optimizer.zero_grad(set_to_none=True)
        say({"step": step + 1, "seconds": round(time.monotonic() - began, 1), "waited_s": round(rollouts.waited_s, 2),
             **{name: float(value) for name, value in found.items()}})  # fmt: skip
        if going is not None and (step + 1) % EVERY == 0:
            going.keep(agent, pupil, step + 1)
    return steps


class Going:
    """GRPO on its way, in a folder: weights, optimizer and the steps done, for a run that ends before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def steps(self) -> int:
        """So many are kept."""
        return int((self.folder / "steps").read_text(encoding="utf-8")) if self.folder.is_dir() else 0

    def keep(self, agent: Agent, pupil: Pupil, steps: int) -> None:
        from safetensors.torch import save_file

        partial = self.folder.with_name(self.folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file({name: one.contiguous() for name, one in trained(agent).items()}, partial / "weights.safetensors")
        torch.save(pupil.optimizer.state_dict(), partial / "optimizer.pt")
        (partial / "steps").write_text(str(steps), encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)
        partial.rename(self.folder)

    def opened(self, agent: Agent, pupil: Pupil) -> int:
        """The steps done; the agent is as after them. Without an optimizer its state begins anew."""
        from safetensors.torch import load_file

        if not self.steps:
            return 0
        kept, mine = load_file(self.folder / "weights.safetensors"), trained(agent)
        with torch.no_grad():
            for name, weight in mine.items():
                weight.copy_(kept[name])
        if (self.folder / "optimizer.pt").is_file():
            pupil.optimizer.load_state_dict(torch.load(self.folder / "optimizer.pt", weights_only=True))
        return self.steps


def trained(agent: Agent) -> dict[str, torch.Tensor]:
    """The weights that learn, by name."""
    return {name: one.detach() for name, one in agent.fast.model.named_parameters() if one.requires_grad}


def tried_often(agent: Agent, rows: Sequence[Row], tools: Toolbox, k: int, tokens: int) -> list[list[float | None]]:
    """Errors in km of K attempts at each picture at temperature 1 (Pass@K)."""
    with torch.no_grad():
        tried = attempts(agent.fast, agent.encoder, rows, tools, count=k, temperature=1.0, tokens=tokens)
    return [[one.error_km for one in group] for group in tried]
