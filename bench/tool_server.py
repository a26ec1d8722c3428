"""A web search and a map service on loopback that answer as slowly, or as wrongly, as they are told.

Speaks Tavily's search and AMap's static maps. A query says what is to become of it: `wait 0.5` is answered after half
a second, `fail` with status 503, `hold NAME` once somebody has asked `release NAME`, or at the latest after HELD_S.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

HELD_S = 120.0  # only so that a test that fails ends


class ToolServer(ThreadingHTTPServer):
    """What was asked, in order, and the requests that are held."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.released: dict[str, threading.Event] = defaultdict(threading.Event)
        self.overdue: list[str] = []  # held requests that were never released

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, query: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(query)
        word, _, rest = query.partition(" ")
        if word == "wait":
            time.sleep(float(rest.split()[0]))
        elif word == "release":
            self.released[rest].set()
        elif word == "hold" and not self.released[rest].wait(HELD_S):
            self.overdue.append(rest)
        if word == "fail":
            return 503, {"error": "out of order"}
        return 200, {"results": [{"title": "Found", "url": "https://example.org", "content": query, "score": 1.0}]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ToolServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, value = self.server.answer(json.loads(body)["query"])
        self._send(status, json.dumps(value).encode(), "application/json")

    def do_GET(self) -> None:
        self.server.asked.append(self.path.partition("?")[0])
        out = io.BytesIO()
        Image.new("RGB", (512, 512), "olive").save(out, "PNG")
        self._send(200, out.getvalue(), "image/png")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a request in thousands is of no interest."""


@contextlib.contextmanager
def tool_server() -> Iterator[ToolServer]:
    """The server, until the block ends."""
    server = ToolServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
