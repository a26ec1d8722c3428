"""Ends the processes of a private Ray when the process that started it ends, also by SIGKILL.

Ray's servers end with their starter, but the agents that its scheduler starts (of the dashboard and of runtime
environments) stay, and workers stay as long as they are busy. A watchdog process waits for the end of a pipe that the
starter holds, then kills every process that writes to a file of Ray's folder.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

KILL_FOR_S = 10.0  # processes that are just starting are found by a later round
ROUND_S = 0.2


class Watchdog:
    """A process beside a private Ray, for as long as the pipe to it is open."""

    def __init__(self, folder: Path) -> None:
        # As a script without site-packages: it takes 10 ms, and no file of the working directory is imported.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not end it first
        )

    def end(self) -> None:
        """Kill what is left of Ray, and wait until it is gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(KILL_FOR_S + 5)


def processes_of(folder: str) -> list[int]:
    """The processes that write to a file of the folder: all of Ray's have a log there."""
    return [pid for pid in _pids() if _writes_in(pid, f"{folder}/")]


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []  # no /proc on this system


def _writes_in(pid: int, prefix: str) -> bool:
    try:
        files = Path(f"/proc/{pid}/fd").iterdir()
        return any(str(file.readlink()).startswith(prefix) and _is_written(pid, file.name) for file in files)
    except OSError:
        return False  # it ended meanwhile, or belongs to another user


def _is_written(pid: int, descriptor: str) -> bool:
    """Whether the file was not opened only for reading, as by a user who follows a log."""
    flags = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().partition("flags:")[2].split()[0]
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _watch(folder: str, starter: int) -> None:
    while os.read(0, 1024):
        pass
    end_s = time.monotonic() + KILL_FOR_S
    while time.monotonic() < end_s:
        left = [pid for pid in processes_of(folder) if pid != starter]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(ROUND_S)


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
