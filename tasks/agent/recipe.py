"""What a recipe is: its words, tools, limits and the form of its answer. Each recipe is a file in `recipes/`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from schemas.messages import Message, text_part
from tasks.agent.toolbox import schemas

AnswerForm = Literal["lines", "json", "levels"]
Writer = Literal["pair", "agent", "proposals", "levels", "truth"]


@dataclass(frozen=True)
class Budgets:
    """How much one trajectory may use; None: as much as it takes."""

    calls: int = 6  # tool calls, SpotAgent's T_max
    turns: int = 8  # replies of the model, the answer included
    tokens: int | None = None  # of all requests and replies together
    seconds: float | None = None
    cost_usd: float | None = None


@dataclass(frozen=True)
class Recipe:
    """One way to locate a picture."""

    name: str
    version: int  # raised with every change of its words
    system: str  # with {max_tool_calls} and {max_turns}
    question: str
    answer_form: AnswerForm
    tools: tuple[str, ...] = ()
    budgets: Budgets = Budgets()
    writers: tuple[Writer, ...] = ("agent",)  # how replies are produced; the first is the paper's
    other_words: Mapping[str, str] = field(default_factory=dict)  # what helpers of the writer are told
    judged_by_distance: bool = True  # whether rejection sampling compares the answer's point with the truth

    def opening(self, picture: dict[str, Any], budgets: Budgets | None = None) -> list[Message]:
        """The conversation before the model's first word; `picture` is an image part, stored or sent."""
        limits = budgets or self.budgets
        words = self.system.replace("{max_tool_calls}", str(limits.calls)).replace("{max_turns}", str(limits.turns))
        return [
            {"role": "system", "content": words},
            {"role": "user", "content": [picture, text_part(self.question)]},
        ]

    def schemas(self) -> list[dict[str, Any]]:
        """The tools it offers."""
        return schemas(self.tools)

    def with_tools(self, *names: str) -> "Recipe":
        """The recipe with only these of its tools, as in SpotAgent's ablations (Table 3)."""
        return replace(self, tools=tuple(name for name in self.tools if name in names))

    @property
    def prompt_hash(self) -> str:
        """16 hex digits that follow from every word any model is told under this recipe."""
        words = [self.system, self.question, dict(self.other_words), self.schemas()]
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]
