"""The offline world: a program of its own that serves a small deterministic Earth over the protocols geofix speaks."""
