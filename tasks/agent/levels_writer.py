"""GeoAgent's way to write a chain of thought (3.1): by a model that sees the picture, or from a person's notes."""

import json
from typing import Any

from schemas.messages import ChatReply, Message
from tasks.agent.asking import Sampling
from tasks.agent.recipes.geoagent import NORMALISE, schema
from tasks.services.chat import Chat

_FORMAT = {"type": "json_schema", "json_schema": {"name": "chain_of_thought", "strict": True, "schema": schema()}}


class LevelsWriter:
    """One reply, held to the form; with `notes` the model reads them in place of the picture."""

    def __init__(self, chat: Chat, role: str, sampling: Sampling, notes: str | None = None) -> None:
        self._chat, self._role, self._sampling, self._notes = chat, role, sampling, notes

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> ChatReply:
        asked = messages if self._notes is None else [{"role": "user", "content": NORMALISE + self._notes}]
        reply = await self._chat.complete(self._role, asked, response_format=_FORMAT, **self._sampling.options())
        return ChatReply(_plain(reply.text), (), reply.finish_reason, reply.usage, reply.model)


def _plain(text: str) -> str:
    """The object written one way, without a code fence; a text that is no object stays as it is."""
    inner = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        return json.dumps(json.loads(inner), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
