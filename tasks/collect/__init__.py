"""Collect: pictures for the planned places."""

from tasks.collect import recheck, satellite, street_view

# What is gone or changed is known before places are done: their pictures are replaced in the same run.
STAGES = [recheck.STAGE, street_view.STAGE, satellite.STAGE]
