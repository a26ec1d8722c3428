"""How answers are rewarded: the constants of the recipes and the services some of them ask."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.settings.base import ADDED, OPERATIONAL, Settings

Cosine = Annotated[float, Field(ge=-1, le=1)]
THRESHOLDS = (0.7, 0.5, 0.0)
RewardTerm = Literal["spatial", "semantic", "judge", "consistency"]


class RewardSettings(Settings):
    """What the recipes' rewards need beside an answer and its truth."""

    beta: float = Field(2.0, gt=1, description="GeoVista eq. 4: beta^2 for the city, beta for the state")
    hierarchical: bool = Field(
        True, description="GeoVista: false leaves the city-level reward alone (Table 4, w/o HR), worth 1"
    )
    terms: tuple[RewardTerm, ...] = Field(
        ("spatial", "semantic", "consistency"),
        description="GeoAgent eq. 3: the terms that count (Table 3); judge stands in for spatial and semantic and asks "
        "for equal texts (Table 4)",
    )
    verifier: str | None = Field(
        None, description="GeoVista: model role queried where the name rule says no; null: the rule alone decides"
    )
    embedder: str = Field("embedder", min_length=1, description="GeoAgent eq. 7: model of the embeddings service")
    thresholds: tuple[Cosine, Cosine, Cosine] = Field(
        THRESHOLDS,
        description="GeoAgent eq. 6: delta of country, region and place, as chosen for its encoder (Table 5; the paper "
        "has no third, 0 keeps a negative cosine from costing reward). Another encoder's cosines need others",
        json_schema_extra=ADDED,
    )
    consistency: str | None = Field(
        "consistency", description="GeoAgent eq. 8: model role that reads the reasoning; null: the term is left out"
    )
    length_form: Literal["authors", "printed"] = Field(
        "authors",
        description="GeoAgent eq. 9: 'authors' as in their code (90..200 characters, 0 below, 1 above), "
        "'printed' normalised over the reply's own levels",
    )
    nothing_useful: float = Field(
        1.0,
        ge=0,
        le=1,
        description="REVERSE: the Matthews correlation of a search without useful results of which none was marked",
        json_schema_extra=ADDED,
    )
    grounding: float = Field(
        0.0,
        ge=0,
        le=1,
        description="what GRPO adds where a tool's place supports the answer and no statement is false, and takes off "
        "where a statement is false or no tool's place is near the answer; 0: neither",
    )
    concurrency: int = Field(
        8, ge=1, le=256, description="answers whose services work at the same time", json_schema_extra=OPERATIONAL
    )

    def identity(self) -> dict[str, Any]:
        """The fields that decide what comes out; a term that is off decides nothing."""
        fields = super().identity()
        return fields if self.grounding else {name: value for name, value in fields.items() if name != "grounding"}

    @model_validator(mode="after")
    def _some_terms(self) -> "RewardSettings":
        if not self.terms or len(set(self.terms)) != len(self.terms):
            raise ValueError(f"terms {list(self.terms)}: name one at least, and each once")
        if "judge" in self.terms and {"spatial", "semantic"} & {*self.terms}:
            raise ValueError(f"terms {list(self.terms)}: judge replaces spatial and semantic; name either")
        if self.terms == ("consistency",) and self.consistency is None:
            raise ValueError("terms [consistency]: the role `consistency` must be named")
        return self
