"""The whole configuration: one section a stage, the services, and how work is spread."""

from pydantic import Field

from schemas.settings.base import Settings
from schemas.settings.collect import CollectSettings
from schemas.settings.curate import CurateSettings
from schemas.settings.difficulty import DifficultySettings
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.ingest import IngestSettings
from schemas.settings.offline import OfflineSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.run import RunSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from schemas.settings.synthesize import SynthesizeSettings
from schemas.settings.train import TrainSettings


class Config(Settings):
    """Everything a run needs to know. No secret is in it: keys come from the environment by name."""

    recipe: str = Field("spotagent", description="which published system to follow")
    profile: str = Field("offline", description="where the services are: offline or production")
    lake: str = Field("lake", description="folder of tables and images", min_length=1)

    plan: PlanSettings = PlanSettings()
    collect: CollectSettings = CollectSettings()
    ingest: IngestSettings = IngestSettings()
    curate: CurateSettings = CurateSettings()
    review: ReviewSettings = ReviewSettings()
    synthesize: SynthesizeSettings = SynthesizeSettings()
    difficulty: DifficultySettings = DifficultySettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    services: ServicesSettings = ServicesSettings()
    spread: SpreadSettings = SpreadSettings()
    run: RunSettings = RunSettings()
    offline: OfflineSettings = OfflineSettings()
