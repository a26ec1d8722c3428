"""A Great Expectations context of its own: in memory, without progress bars, telemetry and chatter."""

import logging
import os
from typing import Any

# Read when Great Expectations is imported, which is done late: nothing leaves the machine.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
os.environ.setdefault("TQDM_DISABLE", "1")


def gx_context() -> Any:
    """A new ephemeral context."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # They tell of every temporary folder and every closure; the second has a level of its own.
    for name in ("great_expectations", "great_expectations.data_context.types.base"):
        logging.getLogger(name).setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context
