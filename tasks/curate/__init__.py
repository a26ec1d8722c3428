"""Curate: what can be localized, with its address and its split. Each step owns a table; `labels` joins them."""

from tasks.curate import address, duplicates, judge, labels

STAGES = [duplicates.STAGE, judge.STAGE, address.STAGE, labels.STAGE]
