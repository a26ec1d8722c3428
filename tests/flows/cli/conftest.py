"""As a user who activated the environment."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell finds `geofix`, so that messages name it without a path."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
