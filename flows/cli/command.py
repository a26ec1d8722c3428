"""How a command is called and how it ends: one line for a person, an exit code for a machine."""

import atexit
import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from flows.options import RunOptions

DONE, FAILED, USAGE, FAILED_ROWS = 0, 1, 2, 3
PIPE_CLOSED = 128 + signal.SIGPIPE  # as of a program that the signal ends
# Sent by a terminal's Ctrl-C, by schedulers and the system, and by a terminal that closes.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROXIES, LOOPBACK = ("http_proxy", "https_proxy", "all_proxy"), "127.0.0.1,localhost,::1"
REMEDIES = {
    errno.ENOSPC: "; free some space and run the same command again",
    errno.EDQUOT: "; free some space and run the same command again",
    errno.EROFS: "; make it writable, or choose another lake with --lake",
    errno.EMFILE: "; allow more open files (`ulimit -n 4096`) and run the same command again",
}


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
    snapshot: str | None = None
    began_s: float = field(default_factory=time.monotonic, compare=False)

    def options(self) -> "RunOptions":
        from flows.options import RunOptions  # pydantic: `--help` does without

        return RunOptions(
            recipe=self.recipe,
            profile=self.profile,
            config=self.config,
            lake=self.lake,
            overrides=self.overrides or [],
            demo=self.demo,
            snapshot=self.snapshot,
        )


class UsageError(Exception):
    """The command was called with something it cannot take, or that does not exist."""


def run_command(call: Call, action: Callable[[], int]) -> NoReturn:
    """Run the action and exit with its code, or say in one line why it failed."""
    _exempt_loopback_from_proxies()
    signals: list[int] = []

    def end(number: int, frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt  # the only exception of a handler that Ray's compiled code lets through

    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            # A shell starts background jobs with SIGINT ignored, and `kill -INT` has to end them; but `nohup` ignores
            # SIGHUP because the command is to go on.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, end)
    interrupted = False
    try:
        code = action()
    except KeyboardInterrupt:
        interrupted, code = True, 128 + (signals[-1] if signals else signal.SIGINT)
        _say("interrupted: finished work is saved; run the same command again to continue")
    except BrokenPipeError as error:
        code = PIPE_CLOSED if _stdout_is_closed() else _report(call, error)
    except Exception as error:  # noqa: BLE001 - the last guard: every error ends as one line and an exit code
        code = _report(call, error)
    atexit.register(_end_at_once_if_asked, code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the terminal may be gone, or the program that read the output, such as `head`
        if _stdout_is_closed():
            code = PIPE_CLOSED
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python tries again at its end, and says so
    if interrupted:
        os._exit(code)  # threads of Prefect and Ray would keep a second Ctrl-C waiting
    raise SystemExit(code)


def _exempt_loopback_from_proxies() -> None:
    """A proxy cannot reach this machine's own servers; Prefect's client and the lake's would ask it for them."""
    if not any(name.lower() in PROXIES for name in os.environ):
        return
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if exempt.strip() != "*" and LOOPBACK not in exempt:
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = f"{exempt},{LOOPBACK}".lstrip(",")


def _end_at_once_if_asked(code: int) -> None:
    """All is done: what other exit handlers still do, such as ending Ray, a signal cuts short in silence."""
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in ENDING:
            signal.signal(number, lambda *_: os._exit(code))


def _stdout_is_closed() -> bool:
    """Whether standard output is a pipe that none reads any more."""
    with contextlib.suppress(OSError, ValueError):  # it may be no file, as in tests
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr)


def _report(call: Call, error: Exception) -> int:
    if call.debug:
        traceback.print_exception(error)
    message, code = _reason(error)
    _say(f"geofix: {message}")
    return code


def _reason(error: Exception) -> tuple[str, int]:
    from schemas.errors import GeofixError, InputError
    from schemas.extras import extra_of, install_command
    from schemas.load import ConfigError
    from tasks.services.errors import ServiceError

    if isinstance(error, (ConfigError, UsageError, InputError)):
        return str(error), USAGE
    if isinstance(error, (GeofixError, ServiceError)):
        return str(error), FAILED
    if (unreachable := _of_prefect(error)) is not None:
        from tasks.services.errors import safe_url

        server = safe_url(os.environ.get("PREFECT_API_URL", "")) or "its address"
        return (
            f"the Prefect server at {server} does not answer ({type(unreachable).__name__}): finished work is saved; "
            "run the same command again when it is back",
            FAILED,
        )
    if isinstance(error, OSError):
        remedy = REMEDIES.get(error.errno or 0, "")
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}{remedy}", FAILED
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name)):
        return f"{error.name} is not installed: {install_command(extra)}", FAILED
    return f"{type(error).__name__}: {error} (a bug in geofix; --debug shows where)", FAILED


def _of_prefect(error: BaseException | None) -> Exception | None:
    """What Prefect's client met on its way to the server, if that is why; services are queried by another library."""
    import httpx

    while error is not None and not isinstance(error, httpx.HTTPError):
        error = error.__cause__
    return error
