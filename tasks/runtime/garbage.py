"""Python's garbage collector, for processes that do the same thing many times."""

import gc

# Containers made before the youngest are looked through, and how many such rounds before older ones are: Python's own
# 700 are made by two requests of an agent, and hundreds of agents under way were walked through ever again, which took
# a tenth of the time. What is in no cycle goes at once all the same.
THRESHOLDS = (10_000, 10, 10)


def settle() -> None:
    """What is open by now stays: no collection need walk through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
