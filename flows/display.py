"""What a run reports while it goes on. The command line prints it; a deployment logs it (flows/logged.py)."""

from contextvars import ContextVar
from typing import Protocol

from flows.logged import Logged
from tasks.runtime.outcome import Tick


class Display(Protocol):
    """Receives how far stages are, what is being prepared, and messages for the user."""

    def tick(self, tick: Tick) -> None: ...
    def phase(self, text: str) -> None: ...  # what goes on until the next phase or tick
    def say(self, text: str) -> None: ...
    def confirm(self, question: str) -> bool: ...  # false where no one can answer
    def close(self) -> None: ...


class Silent:
    """Prints nothing."""

    def tick(self, tick: Tick) -> None:
        pass

    def phase(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def confirm(self, question: str) -> bool:
        return False

    def close(self) -> None:
        pass


# A display cannot be a flow's parameter: Prefect stores those.
display: ContextVar[Display] = ContextVar("display", default=Logged())  # noqa: B039 - holds only times
