"""How trajectories are made and which are kept."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from schemas.recipes import ALL, default_recipe, known_recipe, training_recipes
from schemas.settings.base import Settings

RecipeName = Annotated[str, AfterValidator(known_recipe)]
OneOrAll = Annotated[str, AfterValidator(lambda name: name if name == ALL else known_recipe(name))]
# Words of conversations without tools: the paper's, or shorter ones of ours where a recipe has them.
DirectPrompt = Literal["paper", "short"]
Rule = Literal["visible_signs", "true_statements", "given_coordinates", "placed_answer", "unnamed_answer"]


class SynthesizeSettings(Settings):
    """Trajectories of a recipe, with SpotAgent's rejection sampling (3.2.1)."""

    recipe: RecipeName = Field(default_recipe(), description="whose trajectories are made")
    also: tuple[OneOrAll, ...] = Field(
        (), description="further recipes, tried on `also_images` pictures each; [all]: every recipe there is"
    )
    also_images: int = Field(4, ge=1, description="pictures for each recipe of `also`")
    single_agent: bool = Field(
        False, description="one model that sees and calls tools writes all replies, in place of the paper's way"
    )
    agent: str = Field("agent", min_length=1, description="model role that sees pictures and calls tools")
    observer: str = Field("observer", min_length=1, description="model role that sees and describes pictures")
    planner: str = Field("planner", min_length=1, description="SpotAgent: model role that reasons and calls tools")
    normalizer: str = Field("agent", min_length=1, description="GeoAgent: model role that normalises people's notes")
    notes: str | None = Field(
        None,
        description="GeoAgent: csv, jsonl or Parquet file with image_id and notes, or `review`: what people wrote in "
        "the review site; null: a model writes them",
    )
    boxes: int = Field(2, ge=0, le=8, description="GeoVista: regions proposed for one picture, at most")
    queries: int = Field(2, ge=0, le=8, description="GeoVista: web searches proposed for one picture, at most")
    samples: int = Field(1, ge=1, le=64, description="attempts at one picture, at most")
    enough: int = Field(1, ge=1, le=64, description="kept trajectories of one picture after which none is tried")
    temperature: float = Field(0.7, ge=0, le=2, description="of the model that acts; at 0 all attempts are alike")
    max_tool_calls: int | None = Field(None, ge=0, le=64, description="T_max: tool calls an attempt; null: recipe's")
    max_turns: int | None = Field(None, ge=1, le=65, description="replies in one attempt; null: the recipe's")
    max_total_tokens: int | None = Field(None, ge=1, description="tokens of one attempt, all requests; null: recipe's")
    max_seconds: float | None = Field(None, gt=0, description="wall time of one attempt; null: no limit")
    max_cost_usd: float | None = Field(None, gt=0, description="money for one attempt; null: no limit")
    max_error_km: float = Field(5.0, gt=0, description="delta: a kept answer is nearer to the truth than this")
    require: tuple[Rule, ...] | None = Field(
        None,
        description="rules beyond the paper; null: the recipe's own. visible_signs (a quoted sign stands in a message, "
        "or `observer` reads it in a picture too), true_statements (no result, answer or rule of the road speaks "
        "against a thought), given_coordinates (no coordinate before a tool gave it), placed_answer (the point lies in "
        "the answer's country and town), unnamed_answer (the question does not name it)",
    )
    max_tokens: int = Field(2048, ge=64, description="longest reply of a model")
    result_chars: int = Field(6000, ge=200, description="longest tool result a model is shown, in characters")
    answer_decimals: int = Field(4, ge=0, le=8, description="SpotSFT: decimals of the coordinates in answers")
    view_max_pixels: int = Field(2_000_000, ge=40_000, description="pixels of a picture a model sees, at most")
    view_min_pixels: int = Field(40_000, ge=784, description="pixels of a picture a model sees, at least")
    max_images: int | None = Field(None, ge=1, description="pictures to make trajectories for; null: all for training")

    @model_validator(mode="after")
    def _consistent(self) -> "SynthesizeSettings":
        if self.enough > self.samples:
            raise ValueError(f"enough {self.enough} is more than the {self.samples} samples of a picture")
        if self.view_min_pixels > self.view_max_pixels:
            raise ValueError(f"view_min_pixels {self.view_min_pixels} is above view_max_pixels {self.view_max_pixels}")
        return self

    @property
    def further_recipes(self) -> tuple[str, ...]:
        """The recipes of `also` besides `recipe`, each once."""
        named = [recipe for name in self.also for recipe in (training_recipes() if name == ALL else (name,))]
        return tuple(dict.fromkeys(name for name in named if name != self.recipe))
