"""How the difficulty of a picture is measured."""

from typing import Literal

from pydantic import Field, model_validator

from schemas.recipes import default_recipe
from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.reward import RewardSettings
from schemas.settings.synthesize import DirectPrompt, RecipeName


class DifficultySettings(Settings):
    """SpotAgent's Pass@K filter (3.3.1) and the phases of its curriculum (3.3.2)."""

    policy: str = Field(
        "sft",
        min_length=1,
        description="model whose difficulty is measured: sft (cold_start, grpo) for the recipe's newest model of that "
        "phase, after which a run measures it; or a role, or trained:<model id>",
    )
    endpoint: Literal["chat", "trained"] = Field("chat", description="the service that serves the policy")
    recipe: RecipeName = Field(
        default_recipe(), description="whose reward the trials are given, and whose model is tried"
    )
    reward: RewardSettings = RewardSettings()
    keep: Literal["reward_variance", "learnable"] = Field(
        "reward_variance",
        description="learnable: 0 < Pass@K < K at some threshold, the paper's rule; reward_variance: also rewards that "
        "differ inside the group",
    )
    tools: tuple[str, ...] = Field((), description="tools offered to the policy; [all]: all of agent_recipe; []: none")
    agent_recipe: RecipeName = Field(
        default_recipe(), description="whose words, tools and pictures are used, and how answers are read"
    )
    prompt: DirectPrompt = Field(
        "paper",
        description="words of conversations without tools: the paper's, or the recipe's shorter ones where it has some",
        json_schema_extra=OPERATIONAL,  # the words themselves are part of an item's identity
    )
    k: int = Field(8, ge=2, le=256, description="K: trials for one picture")
    thresholds_km: tuple[float, ...] = Field(
        (1.0, 25.0, 200.0, 750.0), description="delta: a trial nearer than this passes"
    )
    phase_one_km: tuple[float, ...] = Field((1.0, 25.0), description="thresholds whose pictures are trained on first")
    temperature: float = Field(1.0, gt=0, le=2, description="of the trials; without chance all would be alike")
    max_tokens: int = Field(1024, ge=64, description="longest answer of the policy")
    view_max_pixels: int = Field(
        2_000_000,
        ge=40_000,
        description="pixels of a picture the policy sees, at most; a trained model sees no more than in its training",
    )
    view_min_pixels: int = Field(40_000, ge=784, description="pixels of a picture the policy sees, at least")
    max_images: int | None = Field(None, ge=1, description="pictures to try; null: all for training")

    @model_validator(mode="after")
    def _thresholds_rise(self) -> "DifficultySettings":
        if not self.thresholds_km or list(self.thresholds_km) != sorted(set(self.thresholds_km)):
            raise ValueError(f"thresholds_km must rise, got {list(self.thresholds_km)}")
        if self.thresholds_km[0] <= 0:
            raise ValueError("thresholds_km must be greater than 0")
        strangers = set(self.phase_one_km) - set(self.thresholds_km)
        if strangers:
            raise ValueError(f"phase_one_km holds {sorted(strangers)}, which thresholds_km does not")
        return self
