"""Where to look: GeoAgent's country quotas and population cells, drawn on land."""

from tasks.plan.stage import STAGE

STAGES = [STAGE]
