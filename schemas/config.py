"""The whole configuration: one section for each part, the services, and how work is spread."""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from schemas import settings
from schemas.recipes import default_recipe
from schemas.settings.base import Settings
from schemas.settings.benchmark import BenchmarkSettings
from schemas.settings.collect import CollectSettings
from schemas.settings.curate import CurateSettings
from schemas.settings.difficulty import DifficultySettings
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.flows import FlowSettings
from schemas.settings.ingest import IngestSettings
from schemas.settings.maintain import MaintainSettings
from schemas.settings.models import ModelsSettings
from schemas.settings.notify import NotifySettings
from schemas.settings.observe import ObserveSettings
from schemas.settings.offline import OfflineSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.run import RunSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from schemas.settings.synthesize import SynthesizeSettings
from schemas.settings.train import TrainSettings


class KnownSections(Settings):
    """Everything a run needs to know. No secret is in it: keys come from the environment by name."""

    recipe: str = Field(default_recipe(), description="which published system to follow")
    profile: str = Field("offline", description="where the services are: offline or production")
    quality: Literal["paper", "ours"] = Field(
        "paper", description="the recipe as its paper has it, or with what geofix adds (`ours.yaml` of its folder)"
    )
    lake: str = Field(
        "lake", description="folder of tables and images, or a URI such as s3://bucket/prefix", min_length=1
    )

    plan: PlanSettings = PlanSettings()
    collect: CollectSettings = CollectSettings()
    ingest: IngestSettings = IngestSettings()
    curate: CurateSettings = CurateSettings()
    review: ReviewSettings = ReviewSettings()
    synthesize: SynthesizeSettings = SynthesizeSettings()
    difficulty: DifficultySettings = DifficultySettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    benchmark: BenchmarkSettings = BenchmarkSettings()

    services: ServicesSettings = ServicesSettings()
    models: ModelsSettings = ModelsSettings()
    spread: SpreadSettings = SpreadSettings()
    run: RunSettings = RunSettings()
    offline: OfflineSettings = OfflineSettings()
    maintain: MaintainSettings = MaintainSettings()
    flows: FlowSettings = FlowSettings()
    notify: NotifySettings = NotifySettings()
    observe: ObserveSettings = ObserveSettings()


def _further_sections() -> dict[str, Any]:
    """The sections of parts that are not named above: modules of schemas/settings with a class `SECTION`."""
    sections: dict[str, Any] = {}
    for module in pkgutil.iter_modules(settings.__path__):
        if module.name not in KnownSections.model_fields:
            section = getattr(importlib.import_module(f"{settings.__name__}.{module.name}"), "SECTION", None)
            if section is not None:
                sections[module.name] = (section, section())
    return sections


if TYPE_CHECKING:

    class Config(KnownSections): ...

else:
    Config = create_model(
        "Config", __base__=KnownSections, __module__=__name__, __doc__=KnownSections.__doc__, **_further_sections()
    )


def section_of(config: Config, dotted: str) -> Settings:
    """The settings at a dotted path, such as `curate.judge`."""
    section: Any = config
    for name in dotted.split("."):
        section = getattr(section, name, None) if isinstance(section, Settings) else None
    if not isinstance(section, Settings):
        raise ValueError(f"the configuration has no section '{dotted}'")
    return section
