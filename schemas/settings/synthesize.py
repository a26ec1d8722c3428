"""How trajectories are made and which are kept."""

from typing import Literal

from pydantic import Field

from schemas.settings.base import Settings


class SynthesizeSettings(Settings):
    """SpotAgent's multi-agent synthesis with rejection sampling (3.2.1)."""

    recipe: Literal["spotagent"] = Field("spotagent", description="whose trajectories are made")
    observer: str = Field("observer", min_length=1, description="chat model that sees the picture")
    planner: str = Field("planner", min_length=1, description="chat model that reasons and calls tools")
    samples: int = Field(1, ge=1, le=64, description="trajectories tried for one picture")
    temperature: float = Field(0.7, ge=0, le=2, description="of the planner; at 0 all samples are alike")
    max_tool_calls: int = Field(6, ge=0, le=64, description="T_max: tool calls in one trajectory")
    max_error_km: float = Field(5.0, gt=0, description="delta: a kept answer is nearer to the truth than this")
    max_tokens: int = Field(2048, ge=64, description="longest reply of a model")
    result_chars: int = Field(6000, ge=200, description="longest tool result a model is shown, in characters")
    view_max_pixels: int = Field(2_000_000, ge=40_000, description="pixels of a picture a model sees, at most")
    view_min_pixels: int = Field(40_000, ge=784, description="pixels of a picture a model sees, at least")
    max_images: int | None = Field(None, ge=1, description="pictures to make trajectories for; null: all for training")
