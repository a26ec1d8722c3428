"""Sentinel-2 scenes of the offline world: tiles, passes, the painted ground and the files that hold it."""
