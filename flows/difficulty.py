"""Pass@K with the current policy."""

from flows.single import single

difficulty = single("difficulty")
