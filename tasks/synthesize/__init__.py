"""Trajectories: an agent tries to locate pictures, and rejection sampling keeps what is worth learning from."""

from tasks.synthesize.trajectories import STAGE

STAGES = [STAGE]
