"""The steps of evaluate in their order, its check and its report."""

from schemas.extras import require_extras
from schemas.settings.evaluate import EvaluateSettings
from tasks.evaluate.answers import STAGE as ANSWERS
from tasks.evaluate.cues import STAGE as CUES
from tasks.evaluate.ensembles import ENSEMBLES
from tasks.evaluate.grounding import STAGE as GROUNDING
from tasks.evaluate.people import STAGE as PEOPLE
from tasks.evaluate.radius import CALIBRATIONS, RADII
from tasks.evaluate.score_report import report
from tasks.evaluate.scores import PAIRS, SLICES
from tasks.evaluate.scores import STAGE as SCORES
from tasks.runtime.runner import ColumnStage, Stage

STAGES: list[Stage | ColumnStage] = [
    *(ANSWERS, *ENSEMBLES.values(), GROUNDING),
    *(CALIBRATIONS, RADII, SCORES, PEOPLE, SLICES, PAIRS, CUES),
]

__all__ = ["STAGES", "check", "report"]


def check(settings: EvaluateSettings) -> None:
    """Raise what is missing before anything is queried: the swarm's network is computed with torch."""
    if settings.swarm.agents and settings.swarm.election == "learned":
        require_extras("evaluate.swarm.election", "train")
