"""What the user types to run this program: the messages of a command must name commands that work."""

import os
import shutil
import sys
from pathlib import Path


def program() -> str:
    """`geofix` where the shell finds it, else the path of this installation's."""
    ours = Path(sys.executable).parent / "geofix"
    if not ours.exists():
        return "geofix" if shutil.which("geofix") else f"{sys.executable} -m flows.cli"
    found = shutil.which("geofix")
    if found and Path(found).resolve() == ours.resolve():
        return "geofix"
    return min(os.path.relpath(ours), str(ours), key=len)


def how_to_activate() -> str:
    """How to make the shell find `geofix`, or nothing where it does."""
    activate = Path(sys.executable).parent / "activate"
    if program() == "geofix" or not activate.exists():
        return ""
    shortest = min(os.path.relpath(activate), str(activate), key=len)
    return f"source {shortest}   (then `geofix` alone is enough)"
