"""What commands print: results, values on one line, and commands the user can type."""

import json
import os
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

LONGEST = 1000  # characters of a value: a whole message, not a whole file


def print_json(value: Any) -> None:
    """A result for machines, alone on standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=str)
    print()


def one_line(value: Any, longest: int = LONGEST) -> str:
    """The value on one line, cut where it is longer than a person reads."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}" + (" UTC" if value.utcoffset() == timedelta(0) else "")
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def program() -> str:
    """`geofix` where the shell finds it, else the path of this installation's."""
    ours = Path(sys.executable).parent / "geofix"
    if not ours.exists():
        return "geofix" if shutil.which("geofix") else f"{sys.executable} -m flows.cli"
    path = shutil.which("geofix")
    if path and Path(path).resolve() == ours.resolve():
        return "geofix"
    return min(os.path.relpath(ours), str(ours), key=len)


def how_to_activate() -> str:
    """How to make the shell find `geofix`, or nothing where it does."""
    activate = Path(sys.executable).parent / "activate"
    if program() == "geofix" or not activate.exists():
        return ""
    shortest = min(os.path.relpath(activate), str(activate), key=len)
    return f"source {shortest}   (then `geofix` alone is enough)"
