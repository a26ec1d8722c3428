"""Trajectories from curated images."""

from flows.single import single

synthesize = single("synthesize")
