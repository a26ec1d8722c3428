"""Curate: what can be localized, with its address and its split. Each step owns a table; `labels` joins them."""

from tasks.curate import address, confirm, duplicates, judge, labels, quality, tiers
from tasks.curate.external import check

__all__ = ["STAGES", "check"]

STAGES = [
    *(quality.STAGE, address.STAGE, duplicates.STAGE, judge.STAGE, confirm.STAGE, tiers.STAGE),
    labels.STAGE,
]
