"""Questions gathered into few requests: many wait a moment, one asks for all."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tasks.services import ServiceError

Answer = TypeVar("Answer")
# What a request is refused with that one of its keys may be the cause of. A wrong token or a spent budget is not.
_MAY_BE_ONE_KEYS = frozenset({"rejected", "bad_response", "too_big"})


class Batches(Generic[Answer]):
    """Answers by key, requested together: at most `most` keys a request, none waits longer than `linger_s` for others.

    A key that several ask for at once is requested once. What the request raises, all waiting callers get; but where
    the service refuses it for good, one key may have spoiled it, and halves find out which.
    """

    def __init__(
        self, ask: Callable[[Sequence[str]], Awaitable[Mapping[str, Answer]]], most: int, linger_s: float = 0.25
    ) -> None:
        self._ask, self._most, self._linger_s = ask, most, linger_s
        self._waiting: dict[str, asyncio.Future[Answer | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()  # a task without a reference may be collected before it is done

    async def get(self, key: str) -> Answer | None:
        """The answer for a key; None where the service has none."""
        loop = asyncio.get_running_loop()
        if key not in self._waiting:
            self._waiting[key] = loop.create_future()
        future = self._waiting[key]
        if len(self._waiting) >= self._most:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(self._linger_s, self._send)
        # Shielded: one of several that wait for a key may give up without taking the answer from the others.
        return await asyncio.shield(future)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        batch, self._waiting, self._timer = self._waiting, {}, None
        task = asyncio.get_running_loop().create_task(self._answer(batch))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, batch: dict[str, asyncio.Future[Answer | None]]) -> None:
        try:
            rows_by_key = await self._ask(list(batch))
        except ServiceError as error:
            if error.kind in _MAY_BE_ONE_KEYS and not error.retryable and len(batch) > 1:
                keys = list(batch)
                halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
                await asyncio.gather(*(self._answer({key: batch[key] for key in half}) for half in halves))
                return
            _raise(error, batch)
        except Exception as error:  # noqa: BLE001 - it is raised again by everyone who waits
            _raise(error, batch)
        else:
            for key, future in batch.items():
                future.set_result(rows_by_key.get(key))


def _raise(error: Exception, batch: Mapping[str, asyncio.Future[Any]]) -> None:
    for future in batch.values():
        future.set_exception(error)
