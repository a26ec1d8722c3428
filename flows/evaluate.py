"""Predictions of the configured policies, and their scores."""

from flows.single import single

evaluate = single("evaluate")
