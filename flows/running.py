"""Run a flow for the command line: environment for Prefect, display, closing words."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from flows.background import running_api
from flows.closing import closing_json, closing_words
from flows.command import DONE, FAILED_ROWS, Call, UsageError
from flows.display import make_display
from flows.order import PARTS, flow_of, parts_of_flow
from flows.printing import print_json
from flows.servers import Server, listening
from flows.session import check_before, display
from flows.starts import note_start
from tasks.lake import Lake


def run_flow(name: str, call: Call, **parameters: Any) -> int:
    """Run the flow of this name; returns the exit code."""
    config = call.options().resolve()
    check_before(config, parts_of_flow(name, **parameters))
    lake = Lake(config.lake)
    shown = make_display(call.quiet)
    token = display.set(shown)
    try:
        with prefect_ready(lake, call.debug):
            results = flow_of(name)(options=call.options(), **parameters)
    finally:
        display.reset(token)
        shown.close()
    working_s = sum(result.seconds - result.starting_s for result in results)
    has_workers = any(result.starting_s for result in results)
    note_start(lake, name, time.monotonic() - call.began_s - working_s, has_workers)
    if call.as_json:
        print_json(closing_json(results, lake))
    elif not call.quiet:
        print(closing_words(results, lake, call))
    return FAILED_ROWS if any(result.failed for result in results) else DONE


def check_stretch(first: str, last: str) -> None:
    """Refuse a stretch of the pipeline that does not exist."""
    for option, given in (("--from", first), ("--to", last)):
        if given not in PARTS:
            raise UsageError(f"{option}: there is no part '{given}'; the parts are {', '.join(PARTS)}")
    if PARTS.index(first) > PARTS.index(last):
        raise UsageError(f"--from {first} comes after --to {last}; the order is {', '.join(PARTS)}")


@contextlib.contextmanager
def prefect_ready(lake: Lake, debug: bool = False) -> Iterator[None]:
    """Prefect's settings in place, before it is imported, and its server reachable.

    The server is the one that is configured, else the one `geofix up` started for this lake, else one of our own that
    ends with this command. Prefect's own folder lies beside the lake, and its logs stay out of our lines.
    """
    home = lake.root / ".state" / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "DEBUG" if debug else "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
    if "PREFECT_API_URL" in os.environ:
        yield
        return
    api, server = running_api(lake), None
    if api is None:
        door = listening(0)
        port = door.getsockname()[1]
        api = f"http://127.0.0.1:{port}/api"
        command = [sys.executable, "-m", "infra.prefect_server", "--port", str(port)]
        server = Server(command, f"{api}/health", lake.root / ".state" / "prefect-server.log", door)
        server.ensure()
    os.environ["PREFECT_API_URL"] = api
    try:
        yield
    finally:
        if server is not None:
            from flows.run_log import flush

            flush()  # lines that are still on their way would find no server
            server.stop()
