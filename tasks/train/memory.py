"""What training takes of a GPU's memory, from a model's configuration and the settings, before anything is loaded.

The activations of the fast path were measured on an H200 with the 7B shape (docs/train-gpu.md): the numbers that the
backward pass needs, for each token and layer. Nothing here imports torch.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from schemas.errors import GeofixError
from schemas.settings.train import TrainingPhase, TrainSettings

GIB = 2**30
HEAD_CHUNK = 4096  # tokens through the head at once (fast/loss.py)
PATCH = 14  # pixels along a patch's side in Qwen2.5-VL; one text token is a square of 2 x 2 patches
TOKEN_PIXELS = 28 * 28
# The architectures whose packed path training has (fast/families.py), by transformers' names of them.
PACKED = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
OVERHEAD_GIB = 0.7  # of CUDA itself
FRAGMENTS = 1.02  # what the allocator holds beyond what is used
PADDED = 64  # the vision tower's MLP is widened to a multiple (fast/padding.py)
ROOM = 0.95  # of a GPU that is planned with: the forecast is up to five percent off
LEAST_PACK = 2048  # tokens; a GPU is idle over fewer, so that computing some activations twice is faster


@dataclass(frozen=True)
class Shape:
    """The numbers of a vision-language model that decide its memory."""

    hidden: int
    layers: int
    intermediate: int
    key_width: int
    vocabulary: int
    is_tied: bool
    vision_hidden: int
    vision_layers: int
    vision_intermediate: int
    vision_full: int  # layers that attend over whole pictures
    counted: int = 0  # parameters, where they were counted in the checkpoint's files
    patch: int = PATCH

    @classmethod
    def of(cls, config: Mapping[str, Any], counted: int = 0) -> Shape:
        """From a checkpoint's config.json, in the layout of transformers 5 or of the ones before.

        With experts, a layer is as wide as those that one token goes through.
        """
        text, vision = {**config, **config.get("text_config", {})}, config["vision_config"]
        heads, depth = text["num_attention_heads"], vision.get("depth") or vision["num_hidden_layers"]
        key_width = (text.get("head_dim") or text["hidden_size"] // heads) * text.get("num_key_value_heads", heads)
        width = text["intermediate_size"]
        if text.get("num_experts"):
            width = text["num_experts_per_tok"] * text["moe_intermediate_size"]
        return cls(
            text["hidden_size"], text["num_hidden_layers"], width, key_width, text["vocab_size"],
            bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))), vision["hidden_size"],
            depth, -(-vision["intermediate_size"] // PADDED) * PADDED,
            len(vision.get("fullatt_block_indexes", ())), counted, vision.get("patch_size", PATCH),
        )  # fmt: skip

    @property
    def text_layer(self) -> int:
        h, k = self.hidden, self.key_width
        return 2 * h * h + h + 2 * (h * k + k) + 3 * h * self.intermediate + 2 * h

    @property
    def parameters(self) -> int:
        if self.counted:
            return self.counted
        h, v = self.hidden, self.vision_hidden
        text = self.layers * self.text_layer + h + self.vocabulary * h * (1 if self.is_tied else 2)
        block = 4 * v * v + 4 * v + 3 * v * self.vision_intermediate + 2 * self.vision_intermediate + v + 2 * v
        merger = v + (4 * v) ** 2 + 4 * v + 4 * v * h + h
        return text + self.vision_layers * block + 3 * 2 * self.patch**2 * v + merger

    def adapters(self, rank: int) -> int:
        """Parameters of adapters on the language model's seven projections."""
        h, k, i = self.hidden, self.key_width, self.intermediate
        widths = [h + h, h + k, h + k, h + h, h + i, h + i, i + h]
        return self.layers * rank * sum(widths)


@dataclass(frozen=True)
class Load:
    """The largest forward pass of a phase."""

    tokens: int
    patches: int
    trained: int  # tokens through the head
    cached: int = 0  # tokens in the rollouts' key cache
    passes: int = 1  # of an optimizer step


@dataclass(frozen=True)
class Needed:
    """Bytes on one GPU, by what they hold."""

    weights: float
    gradients: float
    states: float
    reference: float
    activations: float
    key_cache: float

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values())) * FRAGMENTS + OVERHEAD_GIB * GIB

    def to_dict(self) -> dict[str, float]:
        """Every part, and the total."""
        return asdict(self) | {"total": self.total}


def memory_needed(shape: Shape, settings: TrainSettings, phase: TrainingPhase, load: Load) -> Needed:
    """The peak of a training step."""
    width = 2 if settings.precision == "bf16" else 4
    parameters = shape.parameters
    trained = parameters if settings.lora is None else shape.adapters(settings.lora.rank)
    trained_width = width if settings.lora is None else 4  # adapters are float32
    weights = parameters * width + (0 if settings.lora is None else trained * 4)
    gradients = trained * trained_width
    has_masters = settings.update == "masters" and trained_width == 2
    kind = settings.states
    state_width = {"bf16": 2.0, "fp32": 4.0}.get(kind, 4.0 if has_masters else trained_width)
    state_bytes = 2 * state_width + (4 if has_masters else 0)
    states = trained * state_bytes
    kept, again = activations(shape, settings, load, width)
    if load.passes == 1:
        # Activations go as gradients come: only the larger of the two counts, and the last layer computed again.
        kept = max(kept - gradients, 0.05 * kept, again)
    if settings.optimizer == "offload":  # on the GPU while their tensor is updated; the embedding is the largest
        kept = max(kept, min(trained, shape.vocabulary * shape.hidden) * state_bytes)
        states = 0
    is_copied = phase == "grpo" and settings.grpo.kl > 0 and settings.lora is None
    reference = parameters * width if is_copied and settings.grpo.reference == "device" else 0
    cache = load.cached * shape.layers * 2 * shape.key_width * width
    parts = settings.workers if settings.shard == "full" else 1
    return Needed(weights / parts, gradients / parts, states / parts, reference / parts, kept, cache)


def activations(shape: Shape, settings: TrainSettings, load: Load, width: int) -> tuple[float, float]:
    """What a forward pass keeps for its backward pass, with the head's share; of it, the tower's last layer."""
    text_layer = 3 * shape.intermediate + 6 * shape.hidden + 2 * shape.key_width
    vision_layer = (
        3 * shape.vision_intermediate + 8 * shape.vision_hidden
        + 3 * shape.vision_hidden * shape.vision_full / max(1, shape.vision_layers)
    )  # fmt: skip
    kind = settings.gradient_checkpointing
    text = load.tokens * shape.layers * (shape.hidden if kind == "all" else text_layer)
    vision = load.patches * shape.vision_layers * (vision_layer if kind == "none" else shape.vision_hidden)
    again = 0 if kind == "none" else load.patches * vision_layer  # one layer at a time
    if kind == "all":
        text += load.tokens * text_layer
    if settings.lora is not None or settings.freeze == "vision":  # a tower that rests keeps nothing
        vision = again = 0
    # The head's gradient; of several chunks it is summed in float32, with the share of one beside it.
    copies = 0.0 if settings.lora is not None else 1.0 if load.trained <= HEAD_CHUNK else 1 + 4 / width
    head = shape.vocabulary * (copies * shape.hidden + 1.2 * min(load.trained, HEAD_CHUNK))
    return (text + vision + again + head) * width, again * width


def load_of(
    settings: TrainSettings, phase: TrainingPhase, text_tokens: int, pictures: int, samples: int, patch: int = PATCH
) -> Load:
    """The largest pass over samples of this many text tokens and pictures each."""
    patches = pictures * settings.image_max_pixels // patch**2
    sample = text_tokens + patches // 4
    if phase != "grpo":
        tuner = settings.sft if phase == "sft" else settings.cold_start
        most = sample * min(tuner.micro_batch, tuner.batch_size, samples)
        tokens = max(sample, min(settings.pack_limit, most))  # shorter samples fill a pack up
        passes = -(-sample * min(tuner.batch_size, samples) // tokens)
        return Load(tokens, tokens * patches // sample, tokens * text_tokens // sample, passes=passes)
    grpo = settings.grpo
    new = grpo.max_completion_tokens
    rollouts = max(1, min(grpo.micro_batch, (settings.pack_limit - sample) // new))
    groups = max(1, min(rollouts // grpo.group_size, settings.pack_limit // (sample + grpo.group_size * new)))
    members = min(rollouts, groups * grpo.group_size)
    prompts = min(grpo.prompts_per_generation, samples)
    decoded = min(grpo.rollout_groups, prompts)
    return Load(
        groups * sample + members * new,
        groups * patches,
        members * new,
        cached=decoded * (sample + grpo.group_size * new) if grpo.engine != "vllm" else 0,
        passes=-(-min(grpo.prompts_per_step, prompts) * grpo.group_size // members),
    )


def fit(
    shape: Shape, settings: TrainSettings, phase: TrainingPhase, text_tokens: int, pictures: int, samples: int,
    room: float,
) -> tuple[TrainSettings, Needed]:  # fmt: skip
    """What `pack_tokens: auto` stands for in `room` bytes, and its memory; the least there is where nothing fits."""
    tried = list(_savings(settings, phase)) if settings.pack_tokens == "auto" else [settings]
    for candidate in tried:
        sample = text_tokens + pictures * settings.image_max_pixels // shape.patch**2 // 4
        packs = _packs(candidate, phase, sample, samples)
        large = packs if candidate is tried[-1] else [pack for pack in packs if pack >= LEAST_PACK] or packs[:1]
        for pack in large:
            chosen = candidate.model_copy(update={"pack_tokens": pack})
            load = load_of(chosen, phase, text_tokens, pictures, samples, shape.patch)
            needed = memory_needed(shape, chosen, phase, load)
            if needed.total <= room:
                return chosen, needed
    return chosen, needed


def _packs(settings: TrainSettings, phase: TrainingPhase, sample: int, samples: int) -> list[int]:
    """Packed lengths from all that a pass may hold to one sample or rollout."""
    if settings.pack_tokens != "auto":
        return [settings.pack_tokens]
    if phase != "grpo":
        tuner = settings.sft if phase == "sft" else settings.cold_start
        most = min(tuner.micro_batch, tuner.batch_size, samples)
        return [quarters * sample // 4 for quarters in range(4 * most, 3, -1)]
    grpo = settings.grpo
    return [-(-n // grpo.group_size) * sample + n * grpo.max_completion_tokens for n in range(grpo.micro_batch, 0, -1)]


def _savings(settings: TrainSettings, phase: TrainingPhase) -> Iterator[TrainSettings]:
    """The settings, and then with ever more that saves memory: what costs least time comes first."""
    yield settings
    if phase == "grpo" and settings.lora is None and settings.grpo.kl and settings.grpo.reference == "device":
        settings = _grpo(settings, reference="offload")
        yield settings
    for kept in ("vision", "all"):
        if settings.gradient_checkpointing not in (kept, "all"):
            settings = settings.model_copy(update={"gradient_checkpointing": kept})
            yield settings
    if settings.optimizer == "device":
        settings = settings.model_copy(update={"optimizer": "offload"})
        yield settings
    while phase == "grpo" and settings.grpo.engine != "vllm" and settings.grpo.rollout_groups > 1:
        settings = _grpo(settings, rollout_groups=settings.grpo.rollout_groups // 2)
        yield settings


def _grpo(settings: TrainSettings, **changes: Any) -> TrainSettings:
    return settings.model_copy(update={"grpo": settings.grpo.model_copy(update=changes)})


def fit_text(settings: TrainSettings, phase: TrainingPhase) -> str:
    """What was chosen, as settings."""
    choices = {name: getattr(settings, name) for name in ("pack_tokens", "gradient_checkpointing", "optimizer")}
    if phase == "grpo":
        reference = {} if settings.lora or not settings.grpo.kl else {"grpo.reference": settings.grpo.reference}
        groups = {} if settings.grpo.engine == "vllm" else {"grpo.rollout_groups": settings.grpo.rollout_groups}
        choices |= {"grpo.engine": settings.grpo.engine, **reference, **groups}
    return " ".join(f"{name}={value}" for name, value in choices.items())


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it."""

    index: int
    name: str
    total: float
    free: float


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine; none where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in listing.splitlines() if line.count(",") == 3]
    return [Gpu(int(number), name, float(total) * 2**20, float(free) * 2**20) for number, name, total, free in rows]


def named_gpu(size: str) -> Gpu:
    """A GPU of this size, such as 80GB or 24GiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(gi?b?)?\s*", size.lower())
    if not match or not float(match[1]):
        raise GeofixError(f"'{size}' is no size of a GPU's memory: give one such as 80GB or 24GiB")
    total = float(match[1]) * (GIB if "i" in (match[2] or "") else 10**9)
    return Gpu(0, f"a GPU of {size.strip()}", total, total)


def memory_advice(settings: TrainSettings, phase: TrainingPhase, parts: Needed) -> str:
    """The setting whose change saves most, for a phase that does not fit."""
    largest = max(asdict(parts), key=lambda name: float(getattr(parts, name)))
    if largest == "key_cache":
        return f"train.grpo.rollout_groups={max(1, settings.grpo.rollout_groups // 2)}"
    if largest == "activations":
        if settings.gradient_checkpointing != "all":
            return "train.gradient_checkpointing=all"
        return f"train.pack_tokens={max(1024, settings.pack_limit // 2)}"
    if parts.reference:
        return "train.grpo.reference=offload"
    if settings.precision == "fp32":
        return "train.precision=bf16"
    if settings.lora is None and settings.optimizer == "device":
        return "train.optimizer=offload"
    return "train.lora.rank=64" if settings.lora is None else "a smaller train.base"
