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

import cv2

Result = TypeVar("Result")

MOST = 4


def _pool(processes: int) -> ThreadPoolExecutor:
    cores = -(-(os.cpu_count() or 1) // processes)
    return ThreadPoolExecutor(max(2, min(MOST, cores)), thread_name_prefix="computing")


_threads = _pool(1)


def share_cores(processes: int) -> None:
    """Leave the other processes their cores: each thread that reads pictures loads an OCR of its own."""
    global _threads
    _threads = _pool(processes)
    if processes > 1:
        cv2.setNumThreads(max(1, (os.cpu_count() or 1) // processes))


async def compute_in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """The function's result, computed beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *arguments)
