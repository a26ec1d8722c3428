"""Curate: what can be localized, with its address and its split."""

from tasks.curate.localizability import STAGE

STAGES = [STAGE]
