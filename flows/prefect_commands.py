"""Commands of Prefect run by one process: `python -m flows.prefect_commands`, for `geofix up`.

Each command of its own would import Prefect and the flows again, which takes seconds. This process imports them while
the server starts, then reads the commands from standard input, as JSON.
"""

import contextlib
import importlib
import json
import runpy
import sys


def run(words: list[str]) -> None:
    """`prefect WORDS`; SystemExit where it fails."""
    sys.argv = ["prefect", *words]
    try:
        runpy.run_module("prefect", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise


def main() -> None:
    """Run the commands until one fails."""
    with contextlib.redirect_stdout(None):  # its help is not wanted: asking for it imports what the command needs
        run(["deploy", "--help"])
    importlib.import_module("flows.pipeline")  # what the deployments name
    for words in json.loads(sys.stdin.read() or "[]"):
        run(words)


if __name__ == "__main__":
    main()
