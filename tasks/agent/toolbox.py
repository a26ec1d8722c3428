"""The tools of a run behind one function: a model's call in, a record and what the model is shown out.

A call never raises. What the model got wrong and what a service failed to answer both come back as plain text; the
record tells them apart, so that an outage is a failure for the books and never counts against a model.
"""

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from schemas.messages import ToolCall
from tasks.agent.picture import Picture
from tasks.agent.tools import NO_PLACE, NO_POINT, TOOLS, ToolContext, ToolMissing, ToolMistake, ToolOutput
from tasks.agent.toolspec import BadArguments, ToolSpec
from tasks.imaging.decode import BadImage
from tasks.services.calls import current_item_id
from tasks.services.errors import ServiceError
from tasks.services.response_store import Responses, ask_once, digest_key, pack, unpack

RESULT_CHARS = 6000
NAMESPACE = "tool"  # of answers in the response store
PICTURE = "picture"  # beside the arguments of tools that send a part of it: the sha256 of its bytes
NOT_RECORDED = "nothing is recorded for this; try another way"


@dataclass(frozen=True)
class CallRecord:
    """What became of one tool call."""

    name: str
    well_formed: bool
    succeeded: bool
    error: str = ""
    outage: str = ""  # the kind of a service's failure; empty: no service failed
    arguments: str = "{}"
    likeness: float = 1.0  # of the recorded question that was answered to this one; 1: the same, or none is recorded

    @property
    def executed(self) -> bool:
        """Valid, parseable and executable, which SpotAgent's fig. 7b counts; a service may yet have found nothing."""
        return self.succeeded or self.error in (NO_PLACE, NO_POINT, NOT_RECORDED)

    def as_row(self) -> dict[str, Any]:
        """The record as stored beside a trajectory."""
        return {
            "name": self.name[:100],
            "arguments": self.arguments[:2000],
            "well_formed": self.well_formed,
            "succeeded": self.succeeded,
            "error": self.error[:300],
        }


@dataclass(frozen=True)
class CallResult:
    """A call's record, the text the model reads, and the picture it sees (a JPEG)."""

    record: CallRecord
    text: str
    picture: bytes | None = None


def tool_schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    """The tools as an OpenAI request offers them, in the order of their names, which is TRL's."""
    return list(_schemas(tuple(sorted(names))))


@functools.lru_cache(maxsize=64)
def _schemas(names: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    return tuple(TOOLS[name].openai() for name in names)


class Answers(Protocol):
    """Where the answers of services to tools come from."""

    async def ask_once(self, request: Sequence[Any], ask: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """The answer to this question; `ask` asks the service."""
        ...


@dataclass(frozen=True)
class ToolResponses:
    """Answers of services to tools, kept: an attempt that is run again asks nothing twice.

    Refusals that are the model's own doing are kept too; outages are not.
    """

    store: Responses
    services: str  # whom answers come from, so that another service's are not taken for them
    of_pictures: str = ""  # the same, of the tools that send a part of the picture

    async def ask_once(self, request: Sequence[Any], ask: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
        """A kept answer, or that of `ask`, which is kept with its question."""

        services = self.of_pictures if TOOLS[request[0]].needs_picture else self.services

        async def packed() -> bytes:
            question = {"services": services, "asked": list(request)}
            try:
                output = await ask()
            except ToolMistake as error:
                return pack({"mistake": str(error), **question})
            is_picture = output.picture is not None
            return pack({"value": output.value, "is_picture": is_picture, **question}, output.picture or b"")

        key = digest_key(services, *request)
        return kept_output(await ask_once(self.store, NAMESPACE, key, packed, current_item_id()))


def kept_output(value: bytes) -> ToolOutput:
    """The answer that was kept, or the mistake that was made."""
    head, picture = unpack(value)
    if "mistake" in head:
        raise ToolMistake(head["mistake"])
    return ToolOutput(head["value"], picture if head["is_picture"] else None)


class Toolbox:
    """Services and settings of the tools; holds no picture, so one serves every trajectory of a worker."""

    def __init__(
        self,
        context: ToolContext | None = None,
        result_chars: int = RESULT_CHARS,
        responses: Answers | None = None,
    ) -> None:
        self.context = replace(context or ToolContext(), picture=None)
        self.result_chars = result_chars
        self._responses = responses

    def showing(self, results: int) -> "Toolbox":
        """The same tools with at most this many results a call."""
        return Toolbox(replace(self.context, max_results=results), self.result_chars, self._responses)

    def limited(self, search_results: int | None, result_chars: int | None) -> "Toolbox":
        """The same tools as a recipe has them: so many pages of a search, and results no longer than its own."""
        if search_results is None and (result_chars is None or result_chars >= self.result_chars):
            return self
        context = replace(self.context, search_results=search_results or self.context.search_results)
        return Toolbox(context, min(self.result_chars, result_chars or self.result_chars), self._responses)

    async def call(self, call: ToolCall, picture: Picture | None, offered: Sequence[str]) -> CallResult:
        """What became of a call by a model that was offered these tools."""
        try:
            spec = TOOLS.get(call.name) if call.name in offered else None
            if spec is None:
                raise BadArguments(f"there is no tool of this name; there are {', '.join(sorted(offered)) or 'none'}")
            arguments = spec.arguments(call.arguments)
            output = await self._run(spec, arguments, picture)
        except BadArguments as error:
            return self._refused(call, str(error), well_formed=False)
        except (ToolMistake, ToolMissing) as error:
            return self._refused(call, str(error))
        except BadImage as error:
            return self._refused(call, f"the picture cannot be read ({error.kind})", outage="bad_response")
        except ServiceError as error:
            return self._refused(call, f"the service did not answer ({error.kind}); try another way", outage=error.kind)
        record = CallRecord(call.name, True, True, arguments=call.arguments, likeness=output.likeness)
        return CallResult(record, as_text(output.value, self.result_chars), output.picture)

    async def _run(self, spec: ToolSpec, arguments: dict[str, Any], picture: Picture | None) -> ToolOutput:
        async def ask() -> ToolOutput:
            output = await spec.function(replace(self.context, picture=picture), **arguments)
            assert isinstance(output, ToolOutput)
            return output

        if spec.service is None or self._responses is None:
            return await ask()
        limits = [self.context.max_results, *([self.context.search_results] if self.context.search_results else [])]
        of_picture = {PICTURE: picture.original_sha256} if spec.needs_picture and picture is not None else {}
        return await self._responses.ask_once([spec.name, arguments | of_picture, *limits], ask)

    def _refused(self, call: ToolCall, why: str, well_formed: bool = True, outage: str = "") -> CallResult:
        record = CallRecord(call.name, well_formed, False, why, outage, call.arguments)
        return CallResult(record, as_text({"error": why}, self.result_chars))


SHORTEST = 60  # characters of a text that still tell something
TOO_LONG = {"error": "the result is too long to show"}


def as_text(value: dict[str, Any], max_chars: int) -> str:
    """A tool's value as JSON of at most `max_chars` characters that cannot be taken for tags.

    Strings are shortened, longest first, until the text fits, so that it stays JSON; before they say nothing any more,
    the last entries of a list go. `<` is written as its escape: a page that holds `</tool_response>`, `<answer>` or a
    control token must not become markup in a prompt.
    """
    while True:
        text = _within(value, max_chars, SHORTEST)
        fewer = _fewer(value) if text is None else None
        if fewer is None:
            # What still does not fit has too many parts, not too long ones.
            return text or _within(value, max_chars, 8) or json.dumps(TOO_LONG)
        value = fewer


def _within(value: dict[str, Any], max_chars: int, shortest: int) -> str | None:
    """The text with strings cut to one length, the longest at which it fits; None below the shortest."""
    limits = [max_chars]
    while limits[-1] >= shortest:
        limits.append(limits[-1] * 2 // 3)
    limits.pop()
    if not limits:
        return None
    whole = _written(value, max_chars)
    if len(whole) <= max_chars:
        return whole
    # What does not fit at the shortest fits at no other: a large value is written twice and not at every length.
    if len(_written(value, limits[-1])) > max_chars:
        return None
    texts = (_written(value, limit) for limit in limits[1:])
    return next(text for text in texts if len(text) <= max_chars)


def _written(value: dict[str, Any], limit: int) -> str:
    return json.dumps(_shorten(value, limit), ensure_ascii=False).replace("<", "\\u003c")


def _fewer(value: dict[str, Any]) -> dict[str, Any] | None:
    """Without the last entries of its longest list; None where no list has several."""
    name, rows = max(
        ((name, part) for name, part in value.items() if isinstance(part, list)),
        key=lambda entry: len(entry[1]),
        default=("", []),
    )
    return {**value, name: rows[: max(1, len(rows) * 3 // 4)]} if len(rows) > 1 else None


def _shorten(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else value[: limit - 1] + "…"
    if isinstance(value, dict):
        return {name: _shorten(part, limit) for name, part in value.items()}
    return [_shorten(part, limit) for part in value] if isinstance(value, list) else value
