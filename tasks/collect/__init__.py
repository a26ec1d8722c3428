"""Collect: pictures for the planned places."""

from tasks.collect.street_view import STAGE

STAGES = [STAGE]
