"""How long a command takes besides its work: starting Python, Prefect, Ray and its workers, and ending them.

Each command notes it beside its lake, so that an estimate can count it in: on a busy machine it is a minute, on a fast
one a few seconds.
"""

import contextlib
import json
import os
from pathlib import Path

from tasks.lake import Lake

# Where no such command was run on the lake yet:
PYTHON_S = 10.0  # Python and Prefect
WORKERS_S = 10.0  # Ray and its workers


def note_start(lake: Lake, command: str, seconds: float, has_workers: bool) -> None:
    """Keep it for later. A note that cannot be written is not worth a word."""
    path = _path(lake)
    known = _read(path)
    if command in known and known[command]["workers"] and not has_workers:
        return  # a run with nothing to do says nothing about one with work
    known[command] = {"seconds": round(seconds, 1), "workers": has_workers}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(known))
        fresh.replace(path)


def usual_start_s(lake: Lake, command: str, servers_s: float) -> float:
    """What this command took last time, or another one did and what this one needs besides: workers and servers."""
    known = _read(_path(lake))
    if command in known and known[command]["workers"]:
        return known[command]["seconds"]
    others = [one["seconds"] for one in known.values() if not one["workers"]]
    return (others[-1] if others else PYTHON_S) + WORKERS_S + servers_s


def _path(lake: Lake) -> Path:
    return lake.state / "starts.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        found = json.loads(path.read_text())
        return {
            name: {"seconds": float(one["seconds"]), "workers": bool(one["workers"])} for name, one in found.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
