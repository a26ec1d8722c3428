"""Run a flow for the command line: environment for Prefect, display, closing words."""

import importlib
import os
from typing import Any

from flows.background import running_api
from flows.closing import closing_json, closing_words
from flows.command import DONE, FAILED_ROWS, Call, UsageError
from flows.display import make_display
from flows.order import PARTS, parts_between
from flows.printing import print_json
from flows.session import check_keys, display
from tasks.lake import Lake


def run_flow(name: str, call: Call, **parameters: Any) -> int:
    """Run the flow of this name; returns the exit code."""
    config = call.options().resolve()
    check_keys(config, _parts(name, parameters))
    lake = Lake(config.lake)
    prepare_prefect(lake, call.debug)
    shown = make_display(call.quiet)
    token = display.set(shown)
    try:
        results = _flow(name)(options=call.options(), **parameters)
    finally:
        display.reset(token)
        shown.close()
    if call.as_json:
        print_json(closing_json(results, lake))
    elif not call.quiet:
        print(closing_words(results, lake, call))
    return FAILED_ROWS if any(result.failed for result in results) else DONE


def _parts(name: str, parameters: dict[str, Any]) -> list[str]:
    if name == "refresh":
        return parts_between("plan", "review")
    if name == "pipeline":
        return parts_between(parameters.get("first", PARTS[0]), parameters.get("last", PARTS[-1]))
    return [name]


def _flow(name: str) -> Any:
    if name in ("plan", "collect", "curate", "review"):
        from flows.single import single

        return single(name)
    return getattr(importlib.import_module(f"flows.{name}"), name)


def check_stretch(first: str, last: str) -> None:
    """Refuse a stretch of the pipeline that does not exist."""
    for option, given in (("--from", first), ("--to", last)):
        if given not in PARTS:
            raise UsageError(f"{option}: there is no part '{given}'; the parts are {', '.join(PARTS)}")
    if PARTS.index(first) > PARTS.index(last):
        raise UsageError(f"--from {first} comes after --to {last}; the order is {', '.join(PARTS)}")


def prepare_prefect(lake: Lake, debug: bool = False) -> None:
    """Settings Prefect reads when it is imported: its own folder beside the lake, no logs between our lines.

    The server is the one that is configured, else the one `geofix up` started for this lake; with neither, Prefect
    starts one for this process, on loopback.
    """
    home = lake.root / ".state" / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home))
    api = running_api(lake)
    if api:
        os.environ.setdefault("PREFECT_API_URL", api)
    # A slow or busy machine needs longer than Prefect's 20 s to start its server for the first time.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "DEBUG" if debug else "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
