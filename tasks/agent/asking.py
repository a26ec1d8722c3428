"""How replies are drawn, and a single agent that sees and calls tools."""

from dataclasses import dataclass
from typing import Any

from schemas.messages import ChatReply, Message
from tasks.services.chat import Chat


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn."""

    temperature: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of a request."""
        return {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}


class SingleAgent:
    """One model that sees the pictures, thinks, and calls the tools itself."""

    def __init__(self, chat: Chat, role: str, sampling: Sampling | None = None) -> None:
        self._chat, self._role, self._sampling = chat, role, sampling or Sampling()

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> ChatReply:
        return await self._chat.complete(self._role, messages, tools=tools, **self._sampling.options())
