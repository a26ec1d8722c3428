"""How a model is trained: the paper's values as defaults, small ones in the offline profile."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.recipes import default_recipe
from schemas.settings.base import ADDED, OPERATIONAL, Settings
from schemas.settings.reward import RewardSettings
from schemas.settings.synthesize import DirectPrompt

TrainingPhase = Literal["sft", "cold_start", "grpo"]
PACK_TOKENS = 8192  # of `pack_tokens: auto` where no GPU limits them


class TinySettings(Settings):
    """The model that is built from random weights when `base` is "tiny"."""

    family: Literal["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"] = Field(
        "qwen2_5_vl", description="its architecture: Qwen2.5-VL, Qwen3-VL, or Qwen3-VL with four experts a layer"
    )
    vocabulary: int = Field(1024, ge=300, description="tokens of the byte-level BPE trained on the samples' text")
    hidden: int = Field(128, ge=64, multiple_of=64, description="width; heads are 64 wide, which vLLM takes")
    layers: int = Field(2, ge=1, description="layers of the language model")
    intermediate: int = Field(256, ge=16, description="width of the language model's MLP")
    vision_hidden: int = Field(64, ge=32, multiple_of=32, description="width of the vision tower, heads are 32 wide")
    vision_layers: int = Field(2, ge=1, description="layers of the vision tower")


class LoraSettings(Settings):
    """Low-rank adapters; GeoAgent trains with rank 64, alpha 128."""

    rank: int = Field(64, ge=1, description="columns of each adapter")
    alpha: int = Field(128, ge=1, description="an adapter counts alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of an adapter's input left out in training")


class RehearsalSettings(Settings):
    """Conversations of another origin among those of SFT and cold start, against forgetting what the base could do."""

    file: str = Field(
        min_length=1,
        description="a Parquet file of conversations, `messages` and `images` as TRL reads them and `geofix "
        "trajectories --as trl` writes them",
    )
    share: float = Field(0.25, gt=0, lt=1, description="of the sequences of an optimizer step")


class TunerSettings(Settings):
    """What SFT and cold start share."""

    epochs: float = Field(1.0, gt=0, description="times every sample is seen")
    max_steps: int | None = Field(None, ge=1, description="number of optimizer steps, in place of epochs")
    batch_size: int = Field(32, ge=1, description="sequences in one optimizer step")
    micro_batch: int = Field(8, ge=1, description="sequences in one forward pass on one device, at most")
    max_tokens: int = Field(32_768, ge=64, description="a sample with more tokens is left out, and counted")
    learning_rate: float = Field(1e-5, gt=0, description="of AdamW, at its highest")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="share of the steps in which the rate rises")
    schedule: Literal["constant", "linear", "cosine"] = Field("cosine", description="how the rate falls")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")


class ColdStartSettings(TunerSettings):
    """Agentic cold start: trajectories, loss on assistant text only (SpotAgent 3.2.2)."""

    replay: float = Field(
        0.0, ge=0, description="SFT samples mixed in per trajectory, against forgetting how to answer at once"
    )


class RolloutVllmSettings(Settings):
    """vLLM beside the trainer, on the same GPU."""

    memory_share: float = Field(
        0.35, gt=0, lt=1, description="of the GPU's memory that vLLM may take, for its weights and key cache"
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="arguments of vLLM, such as max_model_len; null removes one of ours"
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment variables of vLLM; no secrets")
    python: str | None = Field(
        None, description="Python of vLLM's environment; null: $GEOFIX_VLLM_PYTHON, else .venv-vllm/bin/python here"
    )
    start_s: float = Field(1800, gt=0, description="how long its start may take")


class GrpoSettings(Settings):
    """GRPO with the recipe's reward; the defaults are SpotAgent's Table 7."""

    epochs: float = Field(1.0, gt=0, description="times every sample is seen")
    max_steps: int | None = Field(None, ge=1, description="number of optimizer steps, in place of epochs")
    group_size: int = Field(8, ge=2, description="G: completions sampled for one prompt")
    prompts_per_generation: int = Field(256, ge=1, description="verl's train_batch_size: prompts sampled at once")
    prompts_per_step: int = Field(128, ge=1, description="verl's ppo_mini_batch_size: prompts in one optimizer step")
    micro_batch: int = Field(8, ge=1, description="completions in one forward pass on one device, at most")
    learning_rate: float = Field(1e-6, gt=0, description="of AdamW, at its highest")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="how the rate falls")
    kl: float = Field(0.001, ge=0, description="weight of the low-variance KL to the phase's starting model")
    clip: float = Field(0.2, gt=0, lt=1, description="how far the ratio to the sampling policy counts")
    temperature: float = Field(1.0, gt=0, description="of sampling")
    max_completion_tokens: int = Field(4096, ge=1, description="longer completions are cut")
    max_reply_tokens: int | None = Field(
        None,
        ge=1,
        description="with tools, of one reply: a rollout that does not stop writing ends there, for a step waits for "
        "its longest rollout; null: as many as the completion has left",
    )
    max_turns: int = Field(0, ge=0, description="turns with tools in a rollout; 0: no tools in RL, as SpotAgent has it")
    pictures: Literal["learnable", "random", "all", "by_teacher"] = Field(
        "learnable",
        description="which pictures of the train split are trained on: those that Pass@K keeps (SpotAgent 3.3.1), as "
        "many drawn at random (Table 4), or all; or those that the recipe's trajectories tried, first where these came "
        "near (by_teacher, REVERSE). With the last two a run measures no Pass@K",
    )
    teacher_km: tuple[float, float] = Field(
        (25.0, 200.0),
        description="by_teacher: a picture is easy, medium or hard by the distance of its best trajectory's answer; "
        "easy ones are trained on first",
        json_schema_extra=ADDED,
    )
    max_pictures: int | None = Field(
        None, ge=1, description="pictures trained on at most, drawn by `train.seed` (GeoVista fig. 7); null: no limit"
    )
    engine: Literal["auto", "embedded", "vllm"] = Field(
        "auto",
        description="what writes rollouts: the trainer's own engine, or vLLM beside it, given the weights before each "
        "generation; auto: vLLM on a GPU where it is installed, fits and was measured faster (groups of at most 8)",
        json_schema_extra=OPERATIONAL,
    )
    vllm: RolloutVllmSettings = Field(
        RolloutVllmSettings(), description="of engine vllm", json_schema_extra=OPERATIONAL
    )
    ahead: bool = Field(
        False,
        description="with vLLM: the next generation is written while this one is trained on, by weights that are one "
        "generation old; ratios are to the engine's own log-probabilities",
        json_schema_extra=ADDED,
    )
    rollout_groups: int = Field(
        8, ge=1, description="groups decoded side by side, which decides the key cache", json_schema_extra=OPERATIONAL
    )
    reference: Literal["device", "offload"] = Field(
        "device",
        description="where the KL reference's weights lie between its passes; with lora it is the model without them",
        json_schema_extra=OPERATIONAL,
    )
    patience: int | None = Field(
        3,
        ge=1,
        description="validations without a rise of reward after which phase II begins, at the latest when all of I was "
        "seen; null: not before",
    )
    least_rise: float = Field(0.005, ge=0, description="of the validation reward that counts as one")
    loss: Literal["grpo", "dapo", "dr_grpo"] = Field(
        "grpo",
        description="how token losses are averaged: over each completion and then over all (grpo), over all tokens of "
        "the step (dapo), or over completions times max_completion_tokens (dr_grpo)",
    )
    advantage: Literal["grpo", "pass_at_k", "pkpo"] = Field(
        "grpo",
        description="what a rollout is worth in its group (Thinking with Map Table 9): its reward against the group's "
        "(grpo), what it adds to the best of its k (pass_at_k: Tang et al. 2025) or of every k of the group (pkpo: "
        "Walder and Karkhanis 2025)",
    )
    advantage_k: int = Field(4, ge=2, description="k of pass_at_k and pkpo")
    credit: Literal["end", "turn"] = Field(
        "end",
        description="with tools: a rollout's whole reward counts for each of its replies (end), or for a reply only "
        "what is earned from it on, against the group's others from the same reply on (turn)",
        json_schema_extra=ADDED,
    )
    tau_km: tuple[float, float] | None = Field(
        None,
        description="in place of the recipe's reward exp(-d / tau), d the distance in km that it measures, with "
        "tau falling from the first to the last of these over the steps, such as [2000, 25]; null: the recipe's",
        json_schema_extra=ADDED,
    )
    reward: RewardSettings = Field(RewardSettings(), description="constants and services of the recipe's reward")

    @property
    def by_pass_at_k(self) -> bool:
        """Whether Pass@K says which pictures are trained on, or how many."""
        return self.pictures in ("learnable", "random")

    @model_validator(mode="after")
    def _whole_batches(self) -> "GrpoSettings":
        if self.prompts_per_generation % self.prompts_per_step:
            raise ValueError(
                f"prompts_per_generation {self.prompts_per_generation} must be a multiple of "
                f"prompts_per_step {self.prompts_per_step}"
            )
        if self.advantage != "grpo" and self.group_size % self.advantage_k:
            raise ValueError(f"group_size {self.group_size} must be a multiple of advantage_k {self.advantage_k}")
        if self.ahead and (self.temperature != 1 or self.engine == "embedded"):
            raise ValueError("ahead needs engine vllm, and temperature 1, at which vLLM tells its log-probabilities")
        if self.tau_km is not None and not 0 < self.tau_km[1] <= self.tau_km[0] < float("inf"):
            raise ValueError(f"tau_km {list(self.tau_km)}: name the first and the last tau in km, such as [2000, 25]")
        return self


class VerlSettings(Settings):
    """What `geofix verl` writes for verl's rollout engine; the defaults are verl's own."""

    tensor_parallel: int = Field(1, ge=1, description="GPUs that hold one copy of the model while it writes rollouts")
    memory_share: float = Field(0.5, gt=0, le=1, description="of a GPU's memory that the engine may take")


class TrainSettings(Settings):
    """The three phases of training, in the order they run."""

    recipe: str = Field(default_recipe(), description="whose trajectories are trained on, with its reward")
    base: str = Field(
        "",
        description='path or hub name of a vision-language model, the packaged "sees-2" or "finds-2", or "tiny", two '
        "layers of random weights. Qwen2.5-VL and Qwen3-VL train packed, others that transformers opens by a slower "
        "path. Recipes name their paper's; where none is named nothing trains",
    )
    prompt: DirectPrompt = Field(
        "paper",
        description="words of conversations without tools: the paper's, or the recipe's shorter ones where it has some",
        json_schema_extra=OPERATIONAL,  # the words themselves are part of an item's identity
    )
    phases: tuple[TrainingPhase, ...] = Field(
        ("sft", "cold_start", "grpo"), description="which of the three run, in this order"
    )
    seed: int = Field(0, ge=0, description="of the order of samples, of sampling and of new weights")
    # Two threads wait for each other at every small matrix: beside other work they took seven times the CPU of one.
    threads: int = Field(1, ge=1, description="CPU threads of the training process")
    workers: int = Field(
        1,
        ge=1,
        description="processes that train one model together, each with a GPU of its own where there are GPUs; "
        "started by Ray Train",
        json_schema_extra=OPERATIONAL,
    )
    shard: Literal["none", "full"] = Field(
        "full",
        description="with several workers: weights, gradients and AdamW's moments shared out over them (full, FSDP2), "
        "or a whole copy in each (none)",
        json_schema_extra=OPERATIONAL,
    )
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the weights in training")
    update: Literal["stochastic", "masters"] = Field(
        "stochastic",
        description="how bf16 weights keep steps smaller than their last digit: rounded at random, or in fp32 copies",
    )
    states: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="AdamW's two moments; auto: bf16 beside bf16 weights, else fp32"
    )
    optimizer: Literal["device", "offload"] = Field(
        "device",
        description="where AdamW's moments lie between two steps: on the GPU, or in the host's memory, which changes "
        "no bit of the weights and takes about a second a step for 7B",
        json_schema_extra=OPERATIONAL,
    )
    gradient_checkpointing: Literal["none", "vision", "all"] = Field(
        "vision", description="whose activations are computed twice rather than kept; true means all, false none"
    )
    freeze: Literal["none", "vision"] = Field(
        "none", description="vision: the vision tower stays as it is, and only the language model learns"
    )
    pack_tokens: Annotated[int, Field(ge=64)] | Literal["auto"] = Field(
        "auto",
        description="tokens of packed samples in one forward pass, at most; auto: as many as the GPU's memory holds, "
        "and where the longest sample does not fit, grpo.reference, gradient_checkpointing, optimizer and "
        "grpo.rollout_groups are changed, in this order, until it does",
        json_schema_extra=OPERATIONAL,
    )
    loader_threads: int = Field(
        4, ge=0, description="threads that decode pictures ahead of the training step", json_schema_extra=OPERATIONAL
    )
    validation_steps: int = Field(
        10, ge=1, description="optimizer steps between two validations", json_schema_extra=OPERATIONAL
    )
    validation_images: int = Field(
        32, ge=0, description="pictures of the validation split that are answered", json_schema_extra=OPERATIONAL
    )
    validation_attempts: int = Field(
        1,
        ge=1,
        le=64,
        description="K: above 1 each of them is also answered K times at GRPO's temperature, for pass@K by step",
        json_schema_extra=OPERATIONAL,
    )
    save_steps: int = Field(
        100, ge=1, description="optimizer steps between two resumable checkpoints", json_schema_extra=OPERATIONAL
    )
    image_min_pixels: int = Field(40_000, ge=784, description="smaller pictures are enlarged for the model")
    image_max_pixels: int = Field(2_000_000, ge=784, description="larger pictures are shrunk for the model")
    answer_decimals: int = Field(4, ge=0, le=8, description="decimals of the coordinates in SFT answers")
    tiny: TinySettings = TinySettings()
    lora: LoraSettings | None = None
    rehearsal: RehearsalSettings | None = None
    sft: TunerSettings = TunerSettings()
    cold_start: ColdStartSettings = ColdStartSettings()
    grpo: GrpoSettings = GrpoSettings()
    verl: VerlSettings = Field(
        VerlSettings(), description="rollouts of verl, for `geofix verl`", json_schema_extra=OPERATIONAL
    )

    @property
    def pack_limit(self) -> int:
        """Tokens of one forward pass, at most."""
        return PACK_TOKENS if self.pack_tokens == "auto" else self.pack_tokens

    @field_validator("gradient_checkpointing", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return {True: "all", False: "none"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _consistent(self) -> "TrainSettings":
        if self.image_min_pixels > self.image_max_pixels:
            raise ValueError(
                f"image_min_pixels {self.image_min_pixels} is above image_max_pixels {self.image_max_pixels}"
            )
        if self.workers > 1 and self.grpo.engine == "vllm":
            raise ValueError("grpo.engine vllm has one worker: set workers to 1, or grpo.engine to embedded")
        order = [phase for phase in ("sft", "cold_start", "grpo") if phase in self.phases]
        if list(self.phases) != order:
            raise ValueError(f"phases {list(self.phases)} must be unique and in the order sft, cold_start, grpo")
        return self
