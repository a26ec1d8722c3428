"""Says why a command ended when Ray ended it.

A process that has joined a cluster is ended by Ray's library itself, within C++ and without a word, once the servers of
its node are gone. A second process waits for the end of a pipe that the first one holds. Where that came without a
goodbye and one of these servers does not answer, it says the line that the first one could not say.
"""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

GOODBYE = b"."
ASK_S = 2.0


class LastWords:
    """A process beside a command on a cluster; silent unless Ray ends the command."""

    def __init__(self, cluster: str, servers: Sequence[str]) -> None:
        """`servers` are the host:port that the command depends on."""
        # As a script without site-packages: it takes 10 ms, and no file of the working directory is imported.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, cluster, *servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not end it first
        )
        atexit.register(self.end)

    def end(self) -> None:
        """The command speaks for itself from now on."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(GOODBYE)
            self._process.stdin.close()
        self._process.wait(ASK_S + 5)


def _answers(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ASK_S).close()
    except OSError:
        return False
    return True


def _watch(cluster: str, servers: Sequence[str]) -> None:
    last_words = b""
    while piece := os.read(0, 1024):
        last_words = piece
    # If all answer, something else ended the command: it was killed, and its starter knows.
    if not last_words.endswith(GOODBYE) and not all(map(_answers, servers)):
        print(
            f"geofix: Ray ended this command because the Ray cluster at {cluster} (spread.address) or its node on this "
            "machine is gone: what was finished is saved; run the same command again when the cluster is back",
            file=sys.stderr,
        )


if __name__ == "__main__":
    _watch(sys.argv[1], sys.argv[2:])
