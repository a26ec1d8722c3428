"""A Prefect server on loopback for one command: `python -m infra.prefect_server --port N --lifeline`.

Prefect can start such a server by itself, but that one outlives a command that is killed; this one ends with it.
"""

import argparse
import os
import sys

import uvicorn

from infra.lifeline import exit_when_stdin_closes, serve_at


def main(argv: list[str] | None = None) -> int:
    """Serve until the starter ends."""
    parser = argparse.ArgumentParser(prog="python -m infra.prefect_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--listening-fd", type=int, help="serve on this open socket instead")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    options = parser.parse_args(argv)
    if not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        parser.error("PREFECT_SERVER_API_AUTH_STRING must hold the secret that clients have to send")
    # The API alone: no pages, and no kinds of blocks, which take seconds to register with every new lake.
    os.environ["PREFECT_UI_ENABLED"] = "0"
    os.environ.setdefault("PREFECT_API_BLOCKS_REGISTER_ON_START", "0")
    if options.lifeline:
        exit_when_stdin_closes()
    from prefect.server.api.server import create_app  # after its settings

    app = create_app(ephemeral=True, final=True)  # ephemeral: without the services that schedule and clean up
    config = uvicorn.Config(app, host="127.0.0.1", port=options.port, log_level="error", lifespan="on")
    serve_at(uvicorn.Server(config), options.listening_fd)
    return 0


if __name__ == "__main__":
    sys.exit(main())
