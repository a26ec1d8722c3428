"""GeoVista's way to write a trajectory (3.3): regions and searches proposed in one go each, then a final judgement.

Each proposal is a thought with a box or a query. As replies to the environment they become turns of one
conversation; the last reply reads all of them and answers.
"""

import json
from typing import Any

from schemas.messages import ChatReply, Message, ToolCall, Usage, json_object, text_part
from tasks.agent.tagged import without_tags
from tasks.recipes.recipe import WriterContext

_TEXT = {"type": "string"}
_BOX = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}


class Proposals:
    """Replies for one trajectory; make a new one for the next."""

    def __init__(self, context: WriterContext) -> None:
        settings, picture = context.settings, context.picture
        self._chat, self._words = context.chat, context.prompt.helpers
        self._role, self._sampling = settings.agent, context.sampling
        sizes = {"width": picture.width, "height": picture.height}
        self._rounds = [
            ("boxes", "image_zoom_in_tool", "bbox_2d", _BOX, settings.boxes, sizes),
            ("queries", "search_web", "query", _TEXT, settings.queries, {}),
        ]
        self._waiting: list[ChatReply] = []

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> ChatReply:
        while self._rounds and not self._waiting:
            self._waiting = await self._propose(messages, *self._rounds.pop(0))
        if self._waiting:
            return self._waiting.pop(0)
        return await self._chat.complete(self._role, messages, tools=tools, **self._sampling.options())

    async def _propose(
        self,
        messages: list[Message],
        kind: str,
        tool: str,
        argument: str,
        shape: Any,
        count: int,
        sizes: dict[str, int],
    ) -> list[ChatReply]:
        """The proposals of one kind, as replies; what they cost is counted with the first."""
        if not count:
            return []
        words = self._words[kind].format(count=count, **sizes)
        reply = await self._chat.complete(
            self._role,
            [*messages, {"role": "user", "content": [text_part(words)]}],
            response_format=_schema(kind, argument, shape),
            **self._sampling.options(),
        )
        replies: list[ChatReply] = []
        for row in _rows(reply.text, kind)[:count]:
            thought, value = row.get("thought"), row.get(argument)
            if not isinstance(thought, str) or not thought.strip():
                continue
            arguments = json.dumps({argument: value}, ensure_ascii=False)
            usage = reply.usage if not replies else Usage()
            call = ToolCall("call", tool, arguments)
            text = f"<think>{without_tags(thought.strip())}</think>"
            replies.append(ChatReply(text, (call,), "tool_calls", usage, reply.model))
        return replies


def _schema(kind: str, argument: str, shape: Any) -> dict[str, Any]:
    item = _object({"thought": _TEXT, argument: shape})
    schema = _object({kind: {"type": "array", "items": item}})
    return {"type": "json_schema", "json_schema": {"name": kind, "strict": True, "schema": schema}}


def forms() -> list[dict[str, Any]]:
    """In which both kinds of proposals are to be written."""
    return [_schema("boxes", "bbox_2d", _BOX), _schema("queries", "query", _TEXT)]


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _rows(text: str, kind: str) -> list[dict[str, Any]]:
    """The proposals a model wrote; none for any other text."""
    rows = (json_object(text) or {}).get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
