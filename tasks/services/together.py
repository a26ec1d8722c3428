"""Steps of many tasks done together: what comes within a moment goes into one transaction, in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

TOGETHER_S = 0.004  # a model takes a hundred times as long; each transaction takes a turn of the event loop

Step = TypeVar("Step")
Result = TypeVar("Result")


class Together(Generic[Step, Result]):
    """`apply` is given the steps of a moment, in their order, and returns what came of each."""

    def __init__(self, apply: Callable[[list[Step]], Sequence[Result]], name: str) -> None:
        self._apply = apply
        self._thread = ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._waiting: list[tuple[Step, asyncio.Future[Result] | None]] = []
        # The moment ends there; a loop that has ended does not count.
        self._timed_in: asyncio.AbstractEventLoop | None = None
        self._is_running = False
        self._is_due = False  # a moment has ended while a transaction ran

    async def do(self, step: Step) -> Result:
        """Returns when the step is done."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        with self._lock:
            self._waiting.append((step, done))
            is_timed, self._timed_in = self._timed_in is loop, loop
        if not is_timed:
            loop.call_later(TOGETHER_S, self._start)
        return await done

    def begin(self, step: Step) -> None:
        """Without waiting for it."""
        with self._lock:
            self._waiting.append((step, None))
        self._start()

    def _start(self) -> None:
        with self._lock:
            self._timed_in = None
            if not self._waiting:
                return
            if self._is_running:
                self._is_due = True
                return
            self._is_running = True
        self._thread.submit(self._run)

    def _run(self) -> None:
        while True:
            with self._lock:
                taken, self._waiting, self._is_due = self._waiting, [], False
            results: Sequence[Result] = ()
            failed: Exception | None = None
            try:
                results = self._apply([step for step, _ in taken])
            except Exception as error:  # noqa: BLE001 - whatever it is belongs to those that wait for it
                failed = error
            told: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Result], int]]] = {}
            for number, (_, done) in enumerate(taken):
                if done is not None:
                    told.setdefault(done.get_loop(), []).append((done, number))
            for loop, ended in told.items():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_tell, ended, results, failed)
            with self._lock:
                if not (self._is_due and self._waiting):
                    self._is_running = False
                    return


def _tell(
    ended: "list[tuple[asyncio.Future[Result], int]]", results: Sequence[Result], failed: Exception | None
) -> None:
    for done, number in ended:
        if not done.done():  # its asker was cancelled
            done.set_exception(failed) if failed is not None else done.set_result(results[number])
