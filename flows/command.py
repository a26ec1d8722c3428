"""How a command is called and how it ends: one line for a person, a code for a machine."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from flows.options import RunOptions
from schemas.errors import GeofixError, InputError
from schemas.load import ConfigError
from tasks.services.errors import ServiceError

DONE, FAILED, USAGE, FAILED_ROWS, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143


@dataclass(frozen=True)
class Call:
    """The options every command has in common."""

    config: str | None = None
    recipe: str | None = None
    profile: str | None = None
    lake: str | None = None
    overrides: list[str] | None = None
    as_json: bool = False
    quiet: bool = False
    debug: bool = False
    demo: bool = False
    began_s: float = field(default_factory=time.monotonic, compare=False)

    def options(self) -> RunOptions:
        return RunOptions(
            recipe=self.recipe,
            profile=self.profile,
            config=self.config,
            lake=self.lake,
            overrides=self.overrides or [],
            demo=self.demo,
        )


class UsageError(Exception):
    """The command was called with something it cannot take."""


def run_command(call: Call, action: Callable[[], int]) -> NoReturn:
    """Run the action and exit with its code, or say in one line why not."""
    asked: list[int] = []

    def end(number: int, frame: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt  # the only exception of a handler that Ray's compiled code lets through

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)  # what a scheduler or the system sends: it ends like Ctrl-C
        # A shell starts background jobs with SIGINT ignored; `kill -INT` must end them all the same.
        signal.signal(signal.SIGINT, end)
    try:
        code = action()
    except (ConfigError, UsageError, InputError) as error:
        code = _say(call, error, USAGE)
    except (GeofixError, ServiceError) as error:
        code = _say(call, error, FAILED)
    except KeyboardInterrupt:
        print("interrupted: what was finished is saved; run the same command again to go on", file=sys.stderr)
        code = TERMINATED if asked[-1:] == [signal.SIGTERM] else INTERRUPTED
    except OSError as error:
        code = _say(call, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", FAILED)
    except Exception as error:  # noqa: BLE001 - the last guard: a bug, said in one line, with the way to see more
        code = _say(call, f"{type(error).__name__}: {error} (a bug in geofix; --debug shows where)", FAILED)
    sys.stdout.flush()
    sys.stderr.flush()
    if code in (INTERRUPTED, TERMINATED):
        os._exit(code)  # threads of Prefect and Ray would keep a second Ctrl-C waiting
    raise SystemExit(code)


def _say(call: Call, error: BaseException | str, code: int) -> int:
    if call.debug:
        traceback.print_exc()
    print(f"geofix: {error}", file=sys.stderr)
    return code
