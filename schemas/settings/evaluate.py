"""How policies are evaluated."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from schemas.recipes import default_recipe
from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.synthesize import DirectPrompt, RecipeName


class ScalingSettings(Settings):
    """Parallel test-time scaling (Thinking with Map 3.3): N trajectories, then a verifier that answers."""

    policies: tuple[str, ...] = Field(
        (), description="policies to scale: model roles, trained:<model id>, or sft, cold_start, grpo; []: none"
    )
    n: int = Field(4, ge=2, le=64, description="N: trajectories of one picture")
    verifier: str = Field("verifier", min_length=1, description="role that reads the trajectories and answers")
    verifier_tokens: int = Field(
        1024, ge=64, description="longest reply of the verifier, which compares before it answers"
    )
    verifier_context: int | None = Field(
        None, ge=1000, description="tokens of trajectories that fit the verifier's context, roughly; null: all of them"
    )
    temperature: float = Field(1.0, gt=0, le=2, description="of the trajectories")
    top_p: float = Field(0.95, gt=0, le=1, description="of the trajectories")
    top_k: int = Field(60, ge=1, description="of the trajectories, where the server knows it")


Cue = Literal["poles", "text", "shops", "foreground", "plates", "plants", "sky"]


class MaskingSettings(Settings):
    """Robustness with masked cues (GeoAgent D.3): the same pictures, each time without one kind of clue."""

    policies: tuple[str, ...] = Field(
        (), description="policies to ask: model roles, trained:<model id>, or sft, cold_start, grpo; []: none"
    )
    cues: tuple[Cue, ...] = Field(("poles", "text", "shops", "foreground"), min_length=1, description="what is masked")
    locator: str = Field("observer", min_length=1, description="role that says where a cue is in a picture")


Baseline = Literal["single", "vote", "debate", "blender", "php", "reflexion", "dylan", "fixed"]


class SwarmLearningSettings(Settings):
    """How election and links are learned (smileGeo 3.3); the defaults are its appendix C."""

    split: Literal["train", "validation"] = Field("train", description="pictures to learn from")
    max_images: int | None = Field(None, ge=1, description="pictures to learn from; null: all of the split")
    rounds: int = Field(20, ge=1, description="L: rounds of answers and reviews on each picture")
    printed_links: bool = Field(
        False, description="eq. 3 as printed, which weakens links of right answers; false: as its text says"
    )
    encoder: str = Field(
        "tiny",
        min_length=1,
        description='VAE whose encoder sees the pictures: "tiny", learned from these pictures, or a folder or hub name '
        "in the layout of stabilityai/sd-vae-ft-mse",
    )
    encoder_steps: int = Field(200, ge=0, description='steps in which the "tiny" VAE learns to draw the pictures')
    side: int = Field(512, ge=32, multiple_of=8, description="pixels of a side of the picture that the encoder sees")
    width: int = Field(1024, ge=1, description="of agents' embeddings and of the network's layers")
    epochs: int = Field(2500, ge=1, description="times every picture is seen")
    average_epochs: int = Field(100, ge=1, description="last epochs over which the weights are averaged")
    learning_rate: float = Field(1e-5, gt=0, description="of Adam")
    batch_size: int = Field(64, ge=1, description="pictures in one step")
    distance_weight: float = Field(1.0, ge=0, description="of the distance term of eq. 5; 0: without it")
    seed: int = Field(0, ge=0, description="of new weights and of the order of pictures")


class SwarmSettings(Settings):
    """smileGeo's swarm of agents, and the baselines beside it."""

    agents: tuple[str, ...] = Field(
        (), description="model roles of the agents, or `ROLE as PERSONA`, 2 at least; []: no swarm"
    )
    personas: dict[str, str] = Field(
        {
            "nature": "You are good at recognizing natural attractions.",
            "europe": "You are a traveler around Europe.",
        },
        description="what an agent is told about itself, by the persona's name",
    )
    answerers: int = Field(2, ge=1, description="K: agents elected to answer")
    reviewers: int = Field(2, ge=0, description="R: agents that review one answer, found by random walk")
    rounds: int = Field(10, ge=0, description="Z: rounds of discussion at most")
    debate_rounds: int = Field(2, ge=1, description="rounds of the baselines debate, php, reflexion and dylan, at most")
    baselines: tuple[Baseline, ...] = Field(
        ("single", "vote", "debate"),
        description="what the swarm is compared with; `fixed` is the swarm with K agents drawn, as if nothing were "
        "learned",
    )
    web_search: bool = Field(False, description="every agent searches the web once before it first speaks")
    election: Literal["fixed", "learned"] = Field(
        "fixed", description="K agents drawn, all links equal; or by the network that `geofix train` learns"
    )
    network: str | None = Field(
        None, description="model id of the election network; null: the newest that was learned of these agents"
    )
    learning: SwarmLearningSettings = SwarmLearningSettings()
    same_km: float = Field(50.0, gt=0, description="th: answers nearer than this agree, and are right")
    context_chars: int = Field(6000, ge=200, description="of a discussion that are passed on: its end")
    temperature: float = Field(0.7, ge=0, le=2, description="of what agents say")

    @field_validator("agents")
    @classmethod
    def _several(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) == 1 or len(set(value)) != len(value):
            raise ValueError(f"a swarm needs two different agents at least, got {list(value)}")
        return value

    @model_validator(mode="after")
    def _known_personas(self) -> "SwarmSettings":
        for _, persona in self.cast:
            if persona and persona not in self.personas:
                raise ValueError(f"there is no persona '{persona}'; evaluate.swarm.personas has {list(self.personas)}")
        return self

    @model_validator(mode="after")
    def _enough_agents(self) -> "SwarmSettings":
        if self.agents and self.answerers > len(self.agents):
            raise ValueError(f"answerers: {self.answerers} cannot be elected of {len(self.agents)} agents")
        return self

    @property
    def cast(self) -> tuple[tuple[str, str], ...]:
        """(role, persona) of every agent; an agent without one has an empty persona."""
        parts = (name.partition(" as ") for name in self.agents)
        return tuple((role.strip(), persona.strip()) for role, _, persona in parts)


class RadiusSettings(Settings):
    """Split conformal prediction: "within r km with 90 %" for every answer, calibrated on validation pictures."""

    calibrate: bool = Field(
        False, description="also ask the policies about the validation pictures; false: their answers at hand count"
    )
    share: float = Field(0.9, gt=0, lt=1, description="of answers that are to lie within their radius")
    by: tuple[Literal["kind", "continent"], ...] = Field(
        ("kind", "continent"),
        description="groups that are calibrated apart: kind of picture, and continent of the point that is answered",
    )
    least: int = Field(
        900,
        ge=1,
        description="validation answers of a group that is calibrated apart, and of all for any radius; with 900 "
        "a radius of 90 % covers 88 to 92 % of the answers to come, with 300 it covers 87 to 93 %",
    )
    floor_km: float = Field(
        10.0, gt=0, description="added to the distance of several attempts at a picture, by which radii are scaled"
    )
    max_km: float = Field(2500.0, gt=0, description="abstain from an answer with a larger radius")


class GroundingSettings(Settings):
    """Whether answers are right for the right reason."""

    reader: str | None = Field(
        None,
        min_length=1,
        description="role that reads the pictures of answers that quote signs; null: quoted signs are not checked",
    )


class EvaluateSettings(Settings):
    """Which policies answer which pictures, in one turn, and how their scores are computed."""

    policies: tuple[str, ...] = Field(
        ("answerer-base",),
        description="policies to evaluate: model roles, trained:<model id>, or sft, cold_start, grpo for the newest of "
        "that phase",
    )
    trained: bool = Field(True, description="also evaluate the newest GRPO model, once there is one")
    split: Literal["train", "validation", "benchmark"] = Field("benchmark", description="pictures to answer")
    source: str | None = Field(None, description="only pictures of this source, such as an ingested dataset's name")
    tools: tuple[str, ...] = Field(
        (), description="tools offered to the policies; [all]: all of agent_recipe; []: none"
    )
    agent_recipe: RecipeName = Field(
        default_recipe(),
        description="whose words, tools, pictures and models are used, and how answers are read",
    )
    prompt: DirectPrompt = Field(
        "paper",
        description="words of conversations without tools: the paper's, or the recipe's shorter ones where it has some",
        json_schema_extra=OPERATIONAL,  # the words themselves are part of an item's identity
    )
    name: str | None = Field(
        None,
        min_length=1,
        description="tells evaluations apart that differ in more than these settings, such as in the search service",
    )
    verifier: str | None = Field(None, description="role that judges address levels where the name rule says no")
    scaling: ScalingSettings = ScalingSettings()
    masking: MaskingSettings = MaskingSettings()
    swarm: SwarmSettings = SwarmSettings()
    radius: RadiusSettings = RadiusSettings()
    grounding: GroundingSettings = GroundingSettings()
    geocode: bool = Field(False, description="also geocode the address an answer names and measure its distance")
    max_images: int | None = Field(None, ge=1, description="pictures to answer; null: all of the split")
    temperature: float = Field(0.0, ge=0, le=2, description="of the answers; 0: the likeliest")
    max_tokens: int = Field(1024, ge=16, description="longest answer of a policy")
    view_max_pixels: int = Field(
        2_000_000,
        ge=40_000,
        description="pixels of a picture a policy sees, at most; a trained model sees no more than in its training",
    )
    view_min_pixels: int = Field(40_000, ge=784, description="pixels of a picture a policy sees, at least")
    resamples: int = Field(1000, ge=100, le=100_000, description="bootstrap resamples of an interval")
    seed: int = Field(0, ge=0, description="of the bootstrap")

    @field_validator("policies")
    @classmethod
    def _named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"a policy is named twice in {list(value)}")
        if any(not name.strip() or name == "trained:" for name in value):
            raise ValueError("a policy is a model role, trained:<model id>, or sft, cold_start or grpo")
        return value
