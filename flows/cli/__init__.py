"""The `geofix` command: one module a group of commands, heavy imports inside the functions that need them.

Exit codes: 0 done, 1 failed with a one-line reason, 2 wrong usage (also a name, id or file that does not exist),
3 done but with failed rows to retry.
"""

from flows.cli.application import app, main

__all__ = ["app", "main"]
