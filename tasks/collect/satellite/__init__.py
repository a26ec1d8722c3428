"""Satellite pictures: search scenes, choose, read windows, mask clouds, put together."""

from tasks.collect.satellite.stage import STAGE

__all__ = ["STAGE"]
