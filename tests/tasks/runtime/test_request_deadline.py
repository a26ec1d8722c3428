"""A connection whose request does not come is closed; one that asks is served."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from infra.serve import server as model_server
from tasks.review import serve as review_server
from tasks.runtime import request_deadline
from tasks.runtime.request_deadline import DeadlineProtocol

SLOW = b"GET / HTTP/1.1\r\nHost: "
WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(request_deadline, "REQUEST_S", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.0)  # longer than the deadline, which is for the request alone
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server = uvicorn.Server(uvicorn.Config(app, http=DeadlineProtocol, lifespan="off", log_level="error"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("before", [b"", WHOLE])
@pytest.mark.parametrize("sent", [b"", SLOW])
def test_half_a_request_ends_its_connection(address: tuple[str, int], before: bytes, sent: bytes) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(before)
        if before:
            assert b"200 OK" in connection.recv(1000) + connection.recv(1000)
        connection.sendall(sent)
        began = time.monotonic()
        while connection.recv(1000):
            pass
        assert time.monotonic() - began < 20


def test_a_request_in_pieces_is_answered(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        for piece in (WHOLE[:10], WHOLE[10:]):
            connection.sendall(piece)
            time.sleep(0.1)
        assert b"200 OK" in connection.recv(1000)


def test_both_servers_have_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    protocols: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: protocols.append(options["http"]))
    review_server.serve(None, "s", "Ada", 8790, print)  # type: ignore[arg-type]
    (tmp_path / "config.json").touch()
    monkeypatch.setattr(model_server, "served_app", lambda *_: None)
    monkeypatch.setattr(model_server, "serve_at", lambda server, _: protocols.append(server.config.http))
    assert model_server.main(["--model", str(tmp_path)]) == 0
    assert protocols == [DeadlineProtocol, DeadlineProtocol]
