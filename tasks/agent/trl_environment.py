"""The environment in the shape TRL's `environment_factory` takes: a class whose public methods are the tools.

TRL renders the prompt itself, from the messages of a row and the methods' schemas, in the order of their names. With
`Prompt.opening` as the row's messages these are the bytes of a stored sample (tests/tasks/agent/test_byte_equality.py).
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from schemas.messages import ToolCall, text_part
from tasks.agent.picture import Picture
from tasks.agent.prompt import Budgets, Prompt
from tasks.agent.toolbox import CallRecord, Toolbox
from tasks.agent.tools import TOOLS

OpenRow = Callable[[Mapping[str, Any]], Picture]  # a row of the dataset -> the picture it asks about


class TrlRollout:
    """One rollout: `reset` with a row, tools by their names, then `calls` and `outage` for the reward."""

    def __init__(self, toolbox: Toolbox, prompt: Prompt, open_row: OpenRow, budgets: Budgets | None = None) -> None:
        self._toolbox, self._prompt, self._open = toolbox, prompt, open_row
        self._budgets = budgets or prompt.budgets
        self._picture: Picture | None = None
        self.calls: list[CallRecord] = []

    def reset(self, **row: Any) -> None:
        """Begin with a row's picture. Nothing is returned: the row's messages are the whole prompt."""
        self._picture, self.calls = self._open(row), []

    @property
    def outage(self) -> str | None:
        """The kind of the first failure of a service: such a rollout is left out of its group, not scored."""
        return next((call.outage for call in self.calls if call.outage), None)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if len(self.calls) >= self._budgets.calls:
            self.calls.append(CallRecord(name, False, False, "no calls are left"))
            return json.dumps({"error": f"no calls are left: at most {self._budgets.calls} may be made"})
        written = json.dumps(arguments, ensure_ascii=False)
        result = await self._toolbox.call(ToolCall("call", name, written), self._picture, self._prompt.tools)
        self.calls.append(result.record)
        if result.picture is None:
            return result.text
        shown = Image.open(io.BytesIO(result.picture))
        shown.load()
        return [text_part(result.text), {"type": "image", "image": shown}]


def rollout_class(prompt: Prompt) -> type[TrlRollout]:
    """The class for a prompt, with a method for each of its tools."""
    return type("GeofixRollout", (TrlRollout,), {name: _method(name) for name in prompt.tools})


def _method(name: str) -> Any:
    async def act(self: TrlRollout, **arguments: Any) -> Any:
        return await self._call(name, arguments)

    return TOOLS[name].method(act)
