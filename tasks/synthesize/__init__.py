"""Trajectories: agents try to locate pictures, and rejection sampling keeps what is worth learning from."""

from schemas.settings.synthesize import SynthesizeSettings
from tasks.synthesize.notes import read_notes
from tasks.synthesize.report import report
from tasks.synthesize.trajectories import STAGE

__all__ = ["STAGE", "STAGES", "check", "report"]

STAGES = [STAGE]


def check(settings: SynthesizeSettings) -> None:
    """Refuse a file of notes that cannot be read before anything is asked."""
    if settings.notes is not None:
        read_notes(settings.notes)
