"""The official Mapillary client, imported by several test processes at once."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def official_client() -> Any:
    """Its module, else the test is skipped.

    At its first import it makes a folder for its logs beside itself, and fails where another process was quicker.
    """
    spec = find_spec("mapillary")
    if spec is not None and spec.origin is not None:
        Path(spec.origin).parent.joinpath("models", "logs").mkdir(exist_ok=True)
    return pytest.importorskip("mapillary.interface")
