"""What holds for every test."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is slow: how long an example takes says nothing about whether it is right.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True, scope="session")
def same_names_every_time() -> Iterator[None]:
    """Lakes made in this process have one key: which picture comes first, and so what a test sees, is no chance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.lake.names.new_key", lambda: "5eed" * 16)
        yield
