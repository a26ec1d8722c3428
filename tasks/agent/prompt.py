"""What an agent is told and offered: the system's words, the question, the tools and the limits of a trajectory."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.messages import Message, text_part
from tasks.agent.tagged import split_thought
from tasks.agent.toolbox import tool_schemas


@dataclass(frozen=True)
class Budgets:
    """How much one trajectory may use; None: no limit."""

    calls: int = 6  # tool calls, SpotAgent's T_max
    turns: int = 8  # replies of the model, the answer included
    tokens: int | None = None  # of all requests and replies together
    context: int | None = None  # of one request and its reply: the conversation as it stands
    seconds: float | None = None
    cost_usd: float | None = None
    results: int | None = None  # of one search or lookup that a model is shown; None: as many as the tool gives


@dataclass(frozen=True)
class Prompt:
    """How a conversation about a picture is opened."""

    system: str  # with {max_tool_calls} and {max_turns}
    question: str
    tools: tuple[str, ...] = ()
    budgets: Budgets = Budgets()
    helpers: Mapping[str, str] = field(default_factory=dict)  # what further models are told, such as an observer
    search_results: int | None = None  # pages of a web search, at most; None: the toolbox's own number
    result_chars: int | None = None  # longest tool result that is shown; None: the toolbox's own length

    def opening(self, picture: dict[str, Any], budgets: Budgets | None = None) -> list[Message]:
        """The messages before the model's first reply; `picture` is an image part, stored or sent."""
        limits = budgets or self.budgets
        words = self.system.replace("{max_tool_calls}", str(limits.calls)).replace("{max_turns}", str(limits.turns))
        return [
            {"role": "system", "content": words},
            {"role": "user", "content": [picture, text_part(self.question)]},
        ]

    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools it offers, as an OpenAI request names them."""
        return tool_schemas(self.tools)

    def with_tools(self, *names: str) -> "Prompt":
        """The prompt with only these of its tools, as in SpotAgent's ablations (Table 3)."""
        return replace(self, tools=tuple(name for name in self.tools if name in names))

    @property
    def opening_words(self) -> list[Any]:
        """Every word that the model is told, and how much tools show."""
        words: list[Any] = [self.system, self.question, self.tool_schemas()]
        return words + [limit for limit in (self.search_results, self.result_chars) if limit is not None]

    @property
    def words(self) -> list[Any]:
        """The same, and what further models are told."""
        return [*self.opening_words, dict(self.helpers)]

    @property
    def digest(self) -> str:
        """16 hex digits that follow from its words."""
        return hashlib.sha256(json.dumps(self.words, sort_keys=True).encode()).hexdigest()[:16]


QUESTION = "Where was this picture taken? Name the country and the city, and give latitude and longitude."

ANSWER = """\
Write the final answer inside <answer> ... </answer>, as these four lines:
Country: ...
City: ...
Latitude: ... (decimal degrees)
Longitude: ... (decimal degrees)
Latitude and longitude must always be valid numbers and cannot be null."""

SYSTEM = f"""\
You are a helpful assistant. Your task is to determine the geographic location of an image through systematic visual \
analysis.

# Reasoning Requirement
Reason step by step about the visual evidence inside <think> ... </think> tags.

# Final Answer Format
{ANSWER}"""

DIRECT = Prompt(SYSTEM, QUESTION, budgets=Budgets(calls=0, turns=1))

_LINES = re.compile(
    r"<answer>\s*Country: (?P<country>\S[^\n<]*)\nCity: (?P<city>\S[^\n<]*)\n"
    r"Latitude: (?P<lat>-?\d{1,2}(?:\.\d+)?)\nLongitude: (?P<lon>-?\d{1,3}(?:\.\d+)?)\s*</answer>"
)


def direct_messages(picture: dict[str, Any]) -> list[Message]:
    """The conversation that asks a policy to answer in one turn, without tools."""
    return DIRECT.opening(picture)


def answer_lines(country: str, city: str, lat: float, lon: float, decimals: int) -> str:
    """An answer in the form that `ANSWER` asks for."""
    lines = (f"Country: {country}", f"City: {city}", f"Latitude: {lat:.{decimals}f}", f"Longitude: {lon:.{decimals}f}")
    return "<answer>\n" + "\n".join(lines) + "\n</answer>"


def lines_error(text: str) -> str | None:
    """What is wrong with the form of a final message, or None if it is the four lines that `ANSWER` asks for."""
    _, answer = split_thought(text)
    return None if _LINES.fullmatch(answer) else "not the four lines inside <answer>"
