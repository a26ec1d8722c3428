"""From a link of the chain to its model: base or parent opened, the phase's program run, the result put in place."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers

from schemas.errors import GeofixError
from schemas.settings.train import TrainingPhase, TrainSettings, TunerSettings
from tasks.lake.image_store import ImageStore
from tasks.runtime.steps import Steps
from tasks.services import Connections
from tasks.train.chain import Link, samples_of, vocabulary_samples
from tasks.train.encoding import Encoder, Pictures, conversation_texts, open_encoder
from tasks.train.fast.model import FastModel
from tasks.train.fitting import forecast_phase
from tasks.train.grpo import Grpo, Reference
from tasks.train.job import Job, run_job
from tasks.train.loading import load_model, open_processor
from tasks.train.loop import Figures, Program, Validate, prepare_model
from tasks.train.memory import fit_text
from tasks.train.opening import base_folder, check_folder
from tasks.train.ranks import ALONE, Ranks, gathered, shard
from tasks.train.rehearsal import open_rehearsal
from tasks.train.result import Result, finished_result
from tasks.train.rollouts.engines import Engines, RolloutEngines
from tasks.train.rollouts.source import EmbeddedRollouts, Rollouts, Scorer, recipe_scorer
from tasks.train.rollouts.vllm_engines import VllmEngines
from tasks.train.stored import StoredJob
from tasks.train.supervised import Supervised
from tasks.train.tiny import build_model, build_processor
from tasks.train.token_samples import Sample
from tasks.train.trainable import TrainableModel
from tasks.train.validation import NEW_TOKENS, validator
from tasks.train.with_tools import ToolRollouts, environment_maker, opening_prompt

logger = logging.getLogger(__name__)
Rows = Sequence[Mapping[str, Any]]


def train_model(
    link: Link,
    all_samples: pl.DataFrame,
    settings: TrainSettings,
    models: Path,
    store: ImageStore,
    held_out: Rows = (),
    connections: Connections | None = None,
    state: Path | None = None,
    report: Callable[[Steps], None] = lambda steps: None,
    finish: Callable[[Path, Result], None] = lambda final, result: None,
    ranks: Ranks = ALONE,
    stored: StoredJob | None = None,
) -> Result:
    """The link's finished model under `models`; each of `ranks` calls this.

    `stored` keeps its checkpoints where every node finds them.
    """
    if stored is not None:
        stored.publish()
        ranks.wait()
        stored.fetch()
        ranks.wait()  # none writes while another still looks
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)

    def make_job() -> Job:
        nonlocal settings
        samples = samples_of(all_samples, link.phase, settings)
        settings, rows = settled(samples, link.phase, settings), samples.to_dicts()
        taught = vocabulary_samples(all_samples)
        texts = (text for conversation in taught["messages_json"] for text in conversation_texts(conversation))
        processor, model = _open(link, texts, settings, models)
        scorer = recipe_scorer(settings.recipe, settings.grpo.reward, connections)
        fast = prepare_model(model, settings, processor)
        encoder = open_encoder(fast, processor, Pictures(store, settings.image_min_pixels, settings.image_max_pixels))
        phase = _Phase(fast, encoder, settings, store, connections, ranks, state)
        if link.phase == "grpo" and settings.grpo.engine == "vllm":
            phase.vllm = VllmEngines(packed_path(fast), encoder, encoder.end_tokens, settings.grpo.vllm)
            opened.callback(phase.vllm.close)
        weight_decay = 0.0
        if link.phase == "grpo":
            program: Program = phase.grpo(rows, scorer)
        else:
            tuner = settings.sft if link.phase == "sft" else settings.cold_start
            weight_decay = tuner.weight_decay
            program = phase.supervised(rows, tuner)
        if ranks.count > 1 and settings.shard == "full":
            shard(fast, ranks)
        validate = None
        if shown := held_out[: settings.validation_images]:
            engines = phase.engines(settings.grpo.rollout_groups)
            rollouts, encode = phase.rollouts(engines, shown, size=1, temperature=0.0, most_tokens=NEW_TOKENS)
            sampled = None
            if (attempts := settings.validation_attempts) > 1:
                sampled, _ = phase.rollouts(engines, shown, attempts, settings.grpo.temperature, NEW_TOKENS)
            validate = by_first(
                validator(fast, encoder, shown, rollouts, encode, scorer, settings.pack_limit, sampled), fast, ranks
            )
        return Job(model, processor, program, settings, weight_decay, validate, ranks, stored)

    try:
        with contextlib.ExitStack() as opened:
            return run_job(models / link.model_id, make_job, report, finish)
    except torch.cuda.OutOfMemoryError as error:
        raise GeofixError(too_large(settings, error)) from error


@dataclass
class _Phase:
    """What the programs of a phase and its validation are made of."""

    fast: TrainableModel
    encoder: Encoder
    settings: TrainSettings
    store: ImageStore
    connections: Connections | None
    ranks: Ranks
    state: Path | None = None
    vllm: VllmEngines | None = None

    def supervised(self, rows: Rows, tuner: TunerSettings) -> Supervised:
        """SFT or cold start over these samples, with what is rehearsed among them."""
        rehearsal, encoder = self.settings.rehearsal, self.encoder
        rehearsed, old = (0, None) if rehearsal is None else open_rehearsal(rehearsal, encoder)

        def encode(number: int) -> Sample:
            if number >= len(rows) and old is not None:
                return old(number - len(rows))
            return encoder.conversation(rows[number]["messages_json"])

        return Supervised(self.fast, encode, len(rows), self.settings, tuner, self.ranks, rehearsed)

    def grpo(self, rows: Rows, scorer: Scorer) -> Grpo:
        """GRPO over these samples; with tools where the recipe trains with them."""
        settings, grpo, ranks = self.settings, self.settings.grpo, self.ranks
        if grpo.ahead and self.vllm is None:
            raise GeofixError("train.grpo.ahead needs vLLM, which writes while this process trains: train.grpo.engine")
        engines = self.engines(grpo.rollout_groups * grpo.group_size)
        rollouts, encode = self.rollouts(engines, rows, grpo.group_size, grpo.temperature)
        reference = None
        if grpo.kl:
            is_shared = ranks.count > 1 and settings.shard == "full"
            # A reference that is shared out lies on all devices together: it is not moved beside them.
            reference = Reference(self.fast, settings.lora is not None, grpo.reference == "offload" and not is_shared)
            if is_shared:
                shard(reference.fast, ranks)
        return Grpo(self.fast, encode, rows, settings, rollouts, scorer, reference, ranks)

    def engines(self, rollouts: int) -> RolloutEngines:
        """vLLM's, or embedded ones that write this many rollouts side by side."""
        return self.vllm or Engines(self.fast, self.encoder.end_tokens, rollouts)

    def rollouts(
        self, engines: RolloutEngines, rows: Rows, size: int, temperature: float, most_tokens: int | None = None
    ) -> tuple[Rollouts, Callable[[int], Sample]]:
        """What writes `size` rollouts of each row's question, and the question as tokens.

        Rollouts have tools where the settings give them turns. `most_tokens` is given for validation, between whose
        rounds key caches are freed.
        """
        grpo, encoder, connections = self.settings.grpo, self.encoder, self.connections
        new_tokens = min(grpo.max_completion_tokens, most_tokens or grpo.max_completion_tokens)
        keep = most_tokens is None
        if not grpo.max_turns:
            embedded = EmbeddedRollouts(engines, encoder.decode, size, new_tokens, temperature, keep=keep)
            return embedded, lambda number: encoder.prompt(rows[number]["messages_json"])
        make = environment_maker(self.settings, self.store, connections, self.state)
        with_tools = ToolRollouts(
            engines, encoder, make, size, grpo.max_completion_tokens, grpo.max_turns, temperature,
            min(new_tokens, grpo.max_reply_tokens or new_tokens), keep,
            connections is not None and connections.tools.mode != "live",
        )  # fmt: skip
        return with_tools, lambda number: opening_prompt(make(rows[number]), encoder)


def packed_path(fast: TrainableModel) -> FastModel:
    """The model as vLLM's rollouts take it; GeofixError for one of the plain path."""
    if not isinstance(fast, FastModel):
        raise GeofixError(
            f"train.grpo.engine=vllm takes models of the packed path, and '{fast.model.config.model_type}' has none: "
            "set train.grpo.engine=embedded"
        )
    return fast


def by_first(validate: Validate, fast: TrainableModel, ranks: Ranks) -> Validate:
    """Rank 0 asks about the pictures, with all weights at hand, and tells the others."""

    def shared() -> Figures:
        with gathered(fast):
            return ranks.of_first(validate() if ranks.is_first else None)

    return shared


def _open(link: Link, texts: Iterable[str], settings: TrainSettings, models: Path) -> tuple[Any, Any]:
    """Processor and model to start from: the parent's checkpoint, a named base, or a new tiny one."""
    # CPUs emulate bf16 slowly, and a tiny model has no memory to save.
    dtype = torch.bfloat16 if settings.precision == "bf16" and torch.cuda.is_available() else torch.float32
    sizes = (settings.image_min_pixels, settings.image_max_pixels)
    if link.parent_id is None and settings.base == "tiny":  # comes out the same in every process, and after a kill
        processor = build_processor(texts, settings.tiny, *sizes)
        return processor, build_model(processor, settings.tiny, settings.seed).to(dtype)
    if link.parent_id is None:
        start, name = base_folder(settings.base), f"train.base={settings.base}"
    elif finished_result(models / link.parent_id) is None:
        raise GeofixError(f"{link.phase} starts from model {link.parent_id}, which is not trained yet")
    else:
        start, name = models / link.parent_id, f"model {link.parent_id}"
    check_folder(start, name)
    return open_processor(start, *sizes), load_model(start, dtype)


def settled(samples: pl.DataFrame, phase: TrainingPhase, settings: TrainSettings) -> TrainSettings:
    """The settings with what `auto` stands for on this machine, which the log says.

    Refuses a GPU that is too small, or that other processes hold, before weights are loaded to it.
    """
    if not torch.cuda.is_available():
        return settings
    free, total = gpu_memory()
    fitted = forecast_phase(samples, phase, settings, total)
    wanted = fitted.wanted(total)
    if settings.pack_tokens == "auto" or (phase == "grpo" and settings.grpo.engine == "auto"):
        logger.info(
            "%s: %s, which takes about %.1f of the GPU's %.1f GiB", phase, fit_text(fitted.settings, phase),
            wanted / 2**30, total / 2**30,
        )  # fmt: skip
    if wanted > total:
        raise GeofixError(
            f"{fitted.phase} takes about {wanted / 2**30:.0f} GiB and the GPU has {total / 2**30:.0f}: set "
            f"{fitted.advice}; `geofix train --dry-run` says what fits"
        )
    if wanted > free:
        raise GeofixError(
            f"{fitted.phase} takes about {wanted / 2**30:.0f} GiB and other processes left "
            f"{free / 2**30:.0f} of the GPU's {total / 2**30:.0f} GiB free: end them, or name another GPU in "
            "CUDA_VISIBLE_DEVICES"
        )
    return fitted.settings


def gpu_memory() -> tuple[int, int]:
    """Free and all bytes of the GPU."""
    try:
        return torch.cuda.mem_get_info()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:  # a GPU for one process alone that has one, or a driver in trouble
        reason = str(error).splitlines()[0]
        raise GeofixError(
            f"the GPU cannot be used ({reason}): end the process that holds it, or name another GPU in "
            "CUDA_VISIBLE_DEVICES"
        ) from error


def too_large(settings: TrainSettings, error: BaseException) -> str:
    """What to change when a GPU's memory is full, cheapest first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    if any(name.endswith(("engine.py", "cache.py", "source.py")) for name in frames):
        advice = f"lower train.grpo.rollout_groups (now {settings.grpo.rollout_groups}): it decides the key cache"
    elif any(name.endswith("optimizer.py") for name in frames) and settings.lora is None:
        advice = f"set train.optimizer=offload (now {settings.optimizer}) or train adapters (train.lora.rank=64)"
    elif settings.gradient_checkpointing != "all":
        advice = (
            f"lower train.pack_tokens (now {settings.pack_limit}) or set train.gradient_checkpointing=all (now "
            f"{settings.gradient_checkpointing})"
        )
    else:
        advice = f"lower train.pack_tokens (now {settings.pack_limit}) or train.image_max_pixels"
    free, total = gpu_memory()
    return (
        f"the GPU's memory is full ({free / 2**30:.0f} of {total / 2**30:.0f} GiB free): {advice}; `geofix train "
        "--dry-run` says what fits. Training goes on from its last checkpoint"
    )
