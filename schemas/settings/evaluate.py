"""How policies are evaluated."""

from typing import Literal

from pydantic import Field, field_validator

from schemas.settings.base import Settings


class EvaluateSettings(Settings):
    """Which policies answer which pictures, in one turn, and how their scores are computed."""

    policies: tuple[str, ...] = Field(
        ("answerer-base",), description="chat models to evaluate, by the name their service knows them by"
    )
    trained: bool = Field(True, description="also evaluate the newest GRPO model, once there is one")
    split: Literal["train", "validation", "benchmark"] = Field("benchmark", description="pictures to answer")
    max_images: int | None = Field(None, ge=1, description="pictures to answer; null: all of the split")
    temperature: float = Field(0.0, ge=0, le=2, description="of the answers; 0: the likeliest")
    max_tokens: int = Field(1024, ge=16, description="longest answer of a policy")
    view_max_pixels: int = Field(2_000_000, ge=40_000, description="pixels of a picture a policy sees, at most")
    view_min_pixels: int = Field(40_000, ge=784, description="pixels of a picture a policy sees, at least")
    resamples: int = Field(1000, ge=100, le=100_000, description="bootstrap resamples of an interval")
    seed: int = Field(0, ge=0, description="of the bootstrap")

    @field_validator("policies")
    @classmethod
    def _named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"a policy is named twice in {list(value)}")
        if any(not name.strip() or name.startswith("trained:") for name in value):
            raise ValueError("a policy is the name of a chat model; for the trained one set `trained: true`")
        return value
