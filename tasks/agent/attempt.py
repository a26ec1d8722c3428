"""One try of a policy at a picture, with or without tools: what Pass@K, evaluation and test-time scaling repeat."""

import time
from dataclasses import dataclass
from typing import Any

from schemas.messages import ChatReply, Message
from tasks.agent.environment import TOOL_OUTAGE, Environment, Trajectory, run_agent
from tasks.agent.picture import Picture
from tasks.agent.recipe import Recipe
from tasks.agent.recipes import RECIPES
from tasks.agent.toolbox import Toolbox
from tasks.services.chat import Chat
from tasks.services.errors import ServiceError

NO_TOOLS = "spotsft"


@dataclass(frozen=True)
class Attempt:
    """What was said, how, and how long it took."""

    text: str
    trajectory: Trajectory
    seconds: float

    @property
    def tool_pattern(self) -> str:
        """The tools used, each once, in the order of first use; `none` without any."""
        return " > ".join(dict.fromkeys(call.name for call in self.trajectory.calls)) or "none"

    def columns(self) -> dict[str, Any]:
        """What tables of attempts and predictions keep of it."""
        calls, usage = self.trajectory.calls, self.trajectory.usage
        return {
            "answer": self.text,
            "end_reason": self.trajectory.end_reason,
            "tool_calls": len(calls),
            "tool_successes": sum(call.executed for call in calls),
            "tool_pattern": self.tool_pattern,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.cost_usd,
            "seconds": round(self.seconds, 3),
        }


def recipe_with(recipe: str, tools: tuple[str, ...]) -> Recipe:
    """The recipe with these of its tools; without any the words that ask for an answer at once."""
    if not tools:
        return RECIPES[NO_TOOLS]
    if recipe not in RECIPES:
        raise ValueError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    known = RECIPES[recipe].tools
    strangers = [name for name in tools if name not in known and name != "all"]
    if strangers:
        raise ValueError(f"recipe {recipe} has no tool {strangers[0]!r}; it has {', '.join(known)}")
    return RECIPES[recipe] if "all" in tools else RECIPES[recipe].with_tools(*tools)


async def attempt(chat: Chat, role: str, picture: Picture, recipe: Recipe, tools: Toolbox, **options: Any) -> Attempt:
    """The attempt. A service that fails raises: an outage says nothing about the policy."""

    async def ask(messages: list[Message], offered: list[dict[str, Any]] | None) -> ChatReply:
        return await chat.complete(role, messages, tools=offered, **options)

    environment = Environment(picture, tools, recipe, stop_at_outage=True)
    started = time.monotonic()
    found = await run_agent(environment, ask)
    if found.end_reason == TOOL_OUTAGE:
        raise ServiceError("tools", "outage", f"a tool's service did not answer: {found.outage}", retryable=True)
    text = found.final_text or next(
        (str(m["content"]) for m in reversed(found.messages) if m["role"] == "assistant"), ""
    )
    return Attempt(text, found, time.monotonic() - started)
