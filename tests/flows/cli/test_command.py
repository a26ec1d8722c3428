"""How a command is called and ends, whatever the environment and its reader do."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flows.cli.command import PIPE_CLOSED

PRINTS = """
from flows.cli.command import Call, run_command

def action():
    for _ in range({lines}):
        print("a line")
    return 0

run_command(Call(), action)
"""
# httpx is what Prefect's client asks with.
ASKS = """
import httpx, sys
from flows.cli.command import Call, run_command

run_command(Call(), lambda: 0 if httpx.get(sys.argv[1]).status_code == 204 else 1)
"""


@pytest.mark.parametrize("lines", [1, 100_000], ids=["at the end", "while it prints"])
def test_a_reader_that_leaves_ends_a_command_in_silence(lines: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRINTS.format(lines=lines)], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (PIPE_CLOSED, b"")


@pytest.mark.parametrize("excepted", [{}, {"NO_PROXY": "example.org"}, {"no_proxy": "*"}])
def test_loopback_is_asked_directly_whatever_the_proxy(excepted: dict[str, str]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}
    url = f"http://127.0.0.1:{server.server_port}/api"
    done = subprocess.run(
        [sys.executable, "-c", ASKS, url], env={**clean, **proxies, **excepted}, capture_output=True, check=False
    )
    server.shutdown()
    assert (done.returncode, done.stderr) == (0, b"")
