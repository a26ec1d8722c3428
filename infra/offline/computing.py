"""Threads for what computes: painting pictures and scenes, reading them with OCR.

No more of them than cores, and four at most, since more at once only make all of them late (they share one
interpreter; `--processes` serves with several); and always the same ones, since the memory
a thread has worked with stays with it: spread over dozens of threads, a few large pictures cost gigabytes.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

MOST = 4
_threads = ThreadPoolExecutor(max(2, min(MOST, os.cpu_count() or 1)), thread_name_prefix="computing")


async def compute_in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """The function's result, computed beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *arguments)
