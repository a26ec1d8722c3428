"""Run a flow for the command line: settings checked, Prefect reachable, progress shown, summary printed."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flows.cli.command import DONE, FAILED_ROWS, Call
from flows.cli.progress import Reporter, make_display
from flows.display import Display, display

if TYPE_CHECKING:
    from tasks.lake import Lake


def run_flow(name: str, call: Call, **parameters: Any) -> int:
    """Run the flow of this name; returns the exit code."""
    with shown_progress(call) as shown:
        from flows.idle import idle_results
        from flows.order import flow_of, stages_of_flow
        from flows.session import check_before, check_snapshot, check_writers
        from tasks.lake import Lake

        config = call.options().resolve()
        stages = stages_of_flow(name, **parameters)
        check_before(config, stages)
        check_snapshot(config, stages, call.snapshot)
        lake = Lake(config.lake)
        idle = idle_results(config, stages, lake, call.snapshot)
        if idle is None:
            check_writers()
            with prefect_ready(lake, shown, call.debug, config.flows.record_commands):
                from flows.recording import run_flow

                results = run_flow(flow_of(name), options=call.options(), **parameters)
        else:
            results = idle
    if call.as_json:
        from flows.cli.closing import closing_json
        from flows.cli.printing import print_json

        print_json(closing_json(results, lake))
    elif not call.quiet:
        from flows.cli.closing import closing_words

        print(closing_words(results, lake, call))
    return FAILED_ROWS if any(result.failed for result in results) else DONE


@contextlib.contextmanager
def shown_progress(call: Call) -> Iterator[Display]:
    """The display of a command, before it imports what takes seconds."""
    shown = make_display(call.quiet)
    token = display.set(shown)
    try:
        yield shown
    finally:
        display.reset(token)
        shown.close()


@contextlib.contextmanager
def prefect_ready(lake: "Lake", shown: Display, debug: bool = False, record: bool = False) -> Iterator[None]:
    """The flows loaded; Prefect's settings are in place before it is imported.

    A server records the run where PREFECT_API_URL names one, or to `record` where `geofix up` started one for this
    lake. Without a server flows run as plain functions (`flows.recording.run_flow`). Prefect's own folder lies beside
    the lake, and its logs stay out of our lines. Standard output is for the result alone: what Ray and Prefect print
    there goes to standard error.
    """
    home = lake.state / "prefect-private"
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "DEBUG" if debug else "CRITICAL")
    shown.phase("loading the flow")
    if isinstance(shown, Reporter):
        shown.state = lake.state
    if record or "PREFECT_API_URL" in os.environ:
        from flows.background import use_running_server

        use_running_server(lake)
    with contextlib.redirect_stdout(sys.stderr):
        importlib.import_module("flows.stages")  # takes seconds
        try:
            yield
        finally:
            if "PREFECT_API_URL" in os.environ:
                from flows.run_log import flush

                flush()  # lines that are still on their way
