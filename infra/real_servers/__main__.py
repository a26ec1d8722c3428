"""Installs and starts the servers.

    python -m infra.real_servers FOLDER install [NAME …]    # once; all four unless named
    python -m infra.real_servers FOLDER serve [NAME …]      # with empty databases, until it is interrupted

Debian's packages are installed by you: `apt-get install` those of `environments.DEBIAN`.
"""

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

from infra.real_servers import nominatim, panoramax, pgstac, seaweedfs
from infra.real_servers.environments import PACKAGES, install, missing, program
from infra.real_servers.postgres import postgres
from infra.real_servers.processes import home_of_servers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["install", "serve"])
    parser.add_argument("names", nargs="*", choices=[[], *PACKAGES], metavar="NAME")
    options = parser.parse_args()
    folder, names = options.folder.resolve(), options.names or list(PACKAGES)
    if options.what == "install":
        for name in names:
            if not program(folder, name).exists():
                install(folder, name)
        return
    for name in names:
        if (needed := missing(folder, name)) is not None:
            sys.exit(f"{name} needs {needed}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with it, however it is ended
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        home = stack.enter_context(home_of_servers())
        if "seaweedfs" in names:
            print("seaweedfs", stack.enter_context(seaweedfs.serving(folder, home)), flush=True)
        if set(names) - {"seaweedfs"}:
            database = stack.enter_context(postgres(home / "postgres"))
        if "panoramax" in names:
            street_view = stack.enter_context(panoramax.serving(folder, home, database))
            print(f"panoramax {street_view.url} token {street_view.token}", flush=True)
        if "pgstac" in names:
            print("pgstac", stack.enter_context(pgstac.serving(folder, home, database)).url, flush=True)
        if "nominatim" in names:
            print("nominatim", stack.enter_context(nominatim.serving(folder, home, database)), flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
