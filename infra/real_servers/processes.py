"""Programs on loopback that end with their block."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

START_S = 120.0
STOP_S = 5.0  # SeaweedFS waits half a minute for its own parts; nothing that is kept is lost


@contextlib.contextmanager
def home_of_servers() -> Iterator[Path]:
    """A folder that servers of other users may enter; it is deleted with the block."""
    home = Path(tempfile.mkdtemp(prefix="geofix-servers-"))
    home.chmod(0o755)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Free ports, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [int(item.getsockname()[1]) for item in sockets]


def environment(**more: str) -> dict[str, str]:
    """No more of this process's environment than a program needs: no key of ours gets there."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | more


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], url: str, log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program, once it answers at an address with any status."""
    with log.open("ab") as out:
        process = subprocess.Popen([*command], env=env, cwd=cwd, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{Path(command[0]).name} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
