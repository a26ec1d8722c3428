"""Reproducible chance of the ground floor, under the name the plan knows it by."""

from tasks.chance import key, uniform

__all__ = ["key", "uniform"]
