"""Where `geofix review --serve` shows a lake's reports, while it runs: flow runs link there."""

import contextlib
import json
import os

from flows.servers import start_time
from tasks.lake import Lake

FILE = "review-server.json"


def announce(lake: Lake, url: str) -> None:
    """Write down that this process serves the lake's reports there; it counts while the process lives."""
    server = {"url": url, "pid": os.getpid(), "started": start_time(os.getpid())}
    with contextlib.suppress(OSError):  # a lake that can only be read
        lake.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (lake.state / FILE).touch(0o600)
        (lake.state / FILE).write_text(json.dumps(server))


def served_address(lake: Lake) -> str | None:
    """Where a server of this machine shows the lake's reports, if one does now."""
    try:
        server = json.loads((lake.state / FILE).read_text())
        url, pid, started = (server[name] for name in ("url", "pid", "started"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(url) if started and start_time(pid) == started else None
