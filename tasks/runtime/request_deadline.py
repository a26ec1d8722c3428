"""A uvicorn protocol that closes a connection whose request does not come; uvicorn itself waits for ever."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 30.0  # from a connection, or the first byte of a request, to the end of its head; and to that of its body


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for the head of each request. Apps read bodies inside `asyncio.timeout(REQUEST_S)`."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_watch()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._end_watch()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_S, self.transport.close)

    def _end_watch(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
