"""A command that Ray ends has said why; one that ends otherwise is spoken for by itself."""

import socket
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from tasks.runtime.on_ray.last_words import LastWords

words = LastWords("10.0.0.1:6379", sys.argv[1].split())
if sys.argv[2] == "silent":
    os._exit(1)
"""


@pytest.mark.parametrize("is_gone", [True, False], ids=["node gone", "all there"])
@pytest.mark.parametrize("way", ["silent", "with words"])
def test_the_line_is_said_only_where_the_cluster_is_gone_and_the_command_said_nothing(is_gone: bool, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head, socket.create_server(("127.0.0.1", 0)) as node:
        servers = " ".join(f"127.0.0.1:{one.getsockname()[1]}" for one in (head, node))
        if is_gone:
            node.close()
        # The pipe of standard error ends once the second process has ended, too.
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, servers, way], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == int(way == "silent")
    is_said = is_gone and way == "silent"
    assert done.stderr.count("geofix: Ray ended this command") == int(is_said)
    assert ("run the same command again" in done.stderr) is is_said
