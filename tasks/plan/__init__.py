"""Where to look: GeoAgent's country quotas and population cells, drawn on land; or the viewports of cities."""

from tasks.plan.report import report
from tasks.plan.stage import STAGE, check

__all__ = ["STAGES", "check", "report"]

STAGES = [STAGE]
