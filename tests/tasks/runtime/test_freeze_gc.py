"""Collections in a worker: what is open is left out, what is thrown away in cycles still goes."""

import subprocess
import sys

_SCRIPT = """
import gc, weakref
from tasks.runtime.items.chunk import GC_THRESHOLDS, freeze_gc
open_context = [[] for _ in range(5000)]
freeze_gc()
assert gc.get_freeze_count() > 5000
assert gc.get_threshold() == GC_THRESHOLDS and gc.isenabled()
class Cycle: pass
def made():
    one = Cycle(); one.itself = one
    return weakref.ref(one)
cycles = [made() for _ in range(200_000)]
assert sum(one() is not None for one in cycles) < 50_000, "cycles are collected while work goes on"
"""


def test_frozen_processes_still_collect_cycles() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)
