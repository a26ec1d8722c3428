"""A chat server that only waits: every model answers after the same time, however many are asked at once.

It speaks just enough HTTP to be asked by any client, reads no JSON and keeps nothing, so that it is never what a
measurement of a client is limited by. What it says next follows from how many tool results a request holds: first the
calls of a script, then an answer.

    python -m bench.latency_server PORT SECONDS ZOOM
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

ZOOMS = {"sign": [200, 80, 300, 140], "quarter": [20, 20, 220, 180]}  # of a view of 489 x 244 pixels
SCRIPT = (
    ("image_zoom_in_tool", {"bbox_2d": ZOOMS["sign"]}),
    ("search_web", {"query": "bakery on the market square"}),
    ("maps_geocode", {"address": "Market Square 1"}),
)
ANSWER = (
    "<think>The sign names it.</think><answer>\nCountry: Italy\nCity: Siena\nLatitude: 43.3\nLongitude: 11.3\n</answer>"
)
SEARCH = {"results": [{"title": "Bakery", "url": "https://example.org/bakery", "content": "On the square. " * 20}]}
PLACES = [{"lat": "43.318", "lon": "11.331", "display_name": "Market Square, Siena, Italy", "address": {}}]


def completion(step: int, zoom: str) -> bytes:
    """What a model says after n tool results."""
    message: dict[str, object] = {"role": "assistant", "content": ANSWER}
    if step < len(SCRIPT):
        name, arguments = SCRIPT[step] if step else (SCRIPT[0][0], {"bbox_2d": ZOOMS[zoom]})
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": "I look closer.", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if step < len(SCRIPT) else "stop"}
    usage = {"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960}
    whole = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return _raw(json.dumps(whole).encode())


def _raw(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Waits(asyncio.Protocol):
    """One connection: requests one after the other."""

    search, places = _raw(json.dumps(SEARCH).encode()), _raw(json.dumps(PLACES).encode())

    def __init__(self, latency_s: float, completions: tuple[bytes, ...]) -> None:
        self._completions = completions
        self._latency_s, self._held, self._size, self._need = latency_s, list[bytes](), 0, -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._need < 0:
            start = b"".join(self._held)
            end = start.find(b"\r\n\r\n")
            if end < 0:
                return
            _, _, length = start[:end].lower().partition(b"content-length:")
            self._need = end + 4 + (int(length.split(b"\r\n", 1)[0]) if length else 0)
        if self._size >= self._need:
            request = data if len(self._held) == 1 else b"".join(self._held)
            self._held, self._size, self._need = [], 0, -1
            answer, wait_s = self._answer(request)
            asyncio.get_running_loop().call_later(wait_s, self._send, answer)

    def _answer(self, request: bytes) -> tuple[bytes, float]:
        line = request[:200].split(b"\r\n", 1)[0]
        if b"/chat/completions" in line:
            results = request.count(b'"role":"tool"')  # as our client and httpx write it
            return self._completions[min(results, len(SCRIPT))], self._latency_s
        return (self.search if b"/tavily" in line else self.places), 0.0

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def serve(port: int, latency_s: float, zoom: str) -> None:
    said = tuple(completion(step, zoom) for step in range(len(SCRIPT) + 1))
    server = await asyncio.get_running_loop().create_server(
        lambda: Waits(latency_s, said), "127.0.0.1", port, backlog=2048
    )
    await server.serve_forever()


@contextlib.contextmanager
def latency_server(latency_s: float, zoom: str = "sign") -> Iterator[tuple[str, int]]:
    """Its address and process, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "bench.latency_server", str(port), str(latency_s), zoom])
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
