"""How pictures are curated: one section for each step, and the identity of a step is its own section."""

from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.recipes import default_recipe
from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.synthesize import RecipeName

Kinds = tuple[Literal["panorama", "photo", "satellite"], ...]


class QualitySettings(Settings):
    """Which pictures are curated: their pixels are measured, their hashes and embeddings taken."""

    kinds: Kinds = Field(
        ("panorama", "photo", "satellite"),
        min_length=1,
        description="kinds of pictures that are curated; the others stay in `images` as they are",
    )


class DuplicatesSettings(Settings):
    """When two pictures are too alike or too near for both to stay."""

    hash_distance: int = Field(
        6, ge=0, le=12, description="pictures whose hashes differ in at most n of 64 bits may be near-duplicates"
    )
    least_cosine: float = Field(
        0.98, ge=0, le=1, description="and are near-duplicates if their embeddings are at least that alike"
    )
    mirrored: bool = Field(True, description="also compare each picture with the mirrored ones")
    by_parts: bool = Field(
        True,
        description="also find copies that were cropped, turned a little, framed or shifted over their seam, by hashes "
        "of parts",
    )
    least_correlation: float = Field(
        0.95,
        ge=0,
        le=1,
        description="two pictures that share a part are copies if they correlate, aligned, at least so",
    )
    spatial_m: float = Field(
        2.0, ge=0, description="pictures of one sequence and split closer than that are one place; 0 keeps all"
    )
    burst_m: float = Field(
        10.0,
        ge=0,
        description="pictures of one kind and split without a sequence that were taken closer than that, within "
        "`burst_s` of each other, are one place; 0 keeps all",
    )
    burst_s: float = Field(60.0, ge=0, description="seconds between two pictures of one burst, at most")
    leak_km: float = Field(
        1.0,
        ge=0,
        le=200,
        description="no training picture lies that near to a picture of an evaluation split; 0 is off",
    )
    by_sequence: bool = Field(True, description="a sequence serves one split, whatever source its pictures came from")
    by_creator: bool = Field(True, description="a creator's street-level pictures serve one split")
    external: tuple[str, ...] = Field(
        (),
        description="CSV or Parquet files of other evaluation sets, with columns lat and lon, sha256 or phash: what "
        "they hold is taken out of the training split",
    )


class JudgeSettings(Settings):
    """The chat models that judge whether a picture can be localized; `curate.judge: off` asks none."""

    pictures: Literal["all", "collected", "none"] = Field(
        "all",
        json_schema_extra=OPERATIONAL,
        description="which pictures are judged: all but those of published sets, those that collect fetched, or none; "
        "the others are labelled by rules alone, without a verdict",
    )
    model: str = Field("judge", min_length=1, description="chat model that judges localizability")
    second_opinions: tuple[str, ...] = Field((), description="further chat models that judge every picture; all vote")
    tries: int = Field(
        3, ge=1, le=10, description="requests for one picture before it is rejected because no answer is a verdict"
    )
    max_tokens: int = Field(1024, ge=64, description="longest answer of the judge")
    view_max_pixels: int = Field(2_000_000, ge=40_000, description="pixels of the picture the judge sees, at most")

    @model_validator(mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return {"pictures": "none"} if value is False or value == "off" else value

    @property
    def models(self) -> tuple[str, ...]:
        """All models that judge, each once."""
        return tuple(dict.fromkeys((self.model, *self.second_opinions)))


class AddressSettings(Settings):
    """The address of every picture, from the packaged boundaries and gazetteer: no request."""

    place_km: float = Field(50.0, ge=0, le=500, description="a town further away than that is no address")
    shore_km: float = Field(20.0, ge=0, le=100, description="a point at sea within that of a coast belongs to its land")


class ConfirmSettings(Settings):
    """A geocoder's second word on the addresses of localizable pictures; off unless requested."""

    enabled: bool = Field(False, description="ask the geocoder for every localizable picture: one request each")
    zoom: int = Field(
        18,
        ge=3,
        le=18,
        description="level of detail requested of the geocoder: 18 is a building, whose address names its "
        "town; 10, a city, gives boroughs and counties instead of towns",
    )


class TiersSettings(Settings):
    """Base models that answer without tools; a picture most of them place is easy (Thinking with Map, section 4)."""

    models: tuple[str, ...] = Field(
        (), description="chat models that answer zero-shot, three in the paper; none: pictures have no tier"
    )
    agent_recipe: RecipeName = Field(default_recipe(), description="whose words without tools they read")
    easy_km: float = Field(10.0, gt=0, description="an answer within that is right")
    least_right: int = Field(2, ge=1, description="right answers that make a picture easy")
    max_tokens: int = Field(512, ge=64, description="longest answer")
    view_max_pixels: int = Field(1_000_000, ge=40_000, description="pixels of the picture the models see, at most")


class QualityLimits(Settings):
    """What a picture must be to become a label; `quality` holds the figures of every picture."""

    least_pixels: int = Field(40_000, ge=1, description="width times height")
    max_blur: float = Field(0.6, ge=0, le=1, description="0 sharp to 1 without an edge")
    least_brightness: float = Field(0.02, ge=0, le=1, description="mean brightness of a picture that shows something")
    max_brightness: float = Field(0.98, ge=0, le=1, description="and of one that is not washed out")
    max_clipped: float = Field(0.9, ge=0, le=1, description="share of pixels without light or without detail in it")
    max_blockiness: float = Field(4.0, ge=1, description="steps at the edges of JPEG blocks against steps inside them")
    max_sky: float = Field(0.95, ge=0, le=1, description="share of sky")
    max_road: float = Field(0.95, ge=0, le=1, description="share of road")


class LabelsSettings(Settings):
    """Which judged pictures become labels."""

    min_score: float = Field(
        0.0, ge=0, le=10, description="localizable pictures with a lower score are rejected; 0 keeps all (GeoVista)"
    )
    votes: Literal["majority", "all", "any"] = Field(
        "majority", description="how many of several judges must call a picture localizable"
    )
    off_plan_km: float = Field(
        50.0, gt=0, description="a picture further than that from the place it answers is not of that place"
    )
    least_year: int = Field(2000, ge=1826, description="a capture time before that is no capture time")
    written_place: Literal["keep", "reject"] = Field(
        "reject",
        description="what becomes of a picture in which a judge reads its coordinates or the name of its country",
    )
    disputed: Literal["keep", "reject"] = Field(
        "reject", description="what becomes of a picture whose country the geocoder disputes, where it was queried"
    )
    quality: QualityLimits = QualityLimits()


class CurateSettings(Settings):
    """How pictures are measured, compared, judged, addressed and labelled."""

    quality: QualitySettings = QualitySettings()
    duplicates: DuplicatesSettings = DuplicatesSettings()
    judge: JudgeSettings = JudgeSettings()
    address: AddressSettings = AddressSettings()
    confirm: ConfirmSettings = ConfirmSettings()
    tiers: TiersSettings = TiersSettings()
    labels: LabelsSettings = LabelsSettings()
