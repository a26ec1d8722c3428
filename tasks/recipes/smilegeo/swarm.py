"""smileGeo's swarm: elected agents answer, reviewers are found by random walk, the answerers discuss to a consensus.

Agents are model roles, some with a persona. Truth is nowhere in it; `rounds.py` and `network.py` learn election and
links from outcomes. Of a discussion each agent is sent what every other said last (appendix C).
"""

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.messages import Message, ToolCall, Usage, json_object, text_part
from schemas.settings.evaluate import SwarmSettings
from tasks.agent.attempt import stable_seed
from tasks.agent.picture import Picture
from tasks.agent.toolbox import Toolbox
from tasks.geo.distance import distance_km
from tasks.recipes.smilegeo.form import ASK, DISCUSS, PAGES, REVIEW, SEARCH, SUMMARISE
from tasks.services.chat import Chat
from tasks.services.errors import ServiceError

Matrix = NDArray[np.float64]
Point = tuple[float, float]
QUERY_CHARS = 200
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


@dataclass(frozen=True)
class Said:
    """What one agent said at one time."""

    agent: int
    text: str
    when: str = ""  # answer, review, summary, or round N
    place: Point | None = None  # that it names


@dataclass
class Outcome:
    """The answer, how it came about, and what it used."""

    text: str = ""
    how: str = ""  # consensus, majority, or first_elected
    answerers: list[int] = field(default_factory=list)
    reviews: dict[int, list[int]] = field(default_factory=dict)  # answerer -> reviewers
    finals: list[Said] = field(default_factory=list)  # the answerers' last words
    rounds: int = 0
    usage: Usage = Usage()
    log: list[Said] = field(default_factory=list)  # everything that was said, in order
    pages: dict[int, str] = field(default_factory=dict)  # what each agent's web search found

    @property
    def tokens(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens


def elect(probabilities: Sequence[float], k: int, rng: random.Random | None = None) -> list[int]:
    """The K agents most likely to answer rightly, best first; equals are drawn, or without `rng` in their order."""
    order = list(range(len(probabilities)))
    if rng is not None:
        rng.shuffle(order)
    return sorted(order, key=lambda agent: -probabilities[agent])[:k]


def equal_links(agents: int) -> Matrix:
    """A of eq. 3 before the first round: every agent is linked to every other."""
    return np.ones((agents, agents)) - np.eye(agents)


def walk_reviewers(links: Matrix, start: int, r: int, rng: random.Random) -> list[int]:
    """R different reviewers of an agent, by a random walk with p(i, j) = A_ij / sum A_ik, eq. 1."""
    reviewers: list[int] = []
    at = start
    for _ in range(100 * r):
        if len(reviewers) == min(r, len(links) - 1):
            break
        weights = [0.0 if other == at else float(links[at][other]) for other in range(len(links))]
        if sum(weights) <= 0:
            at = start
            weights = [float(other != start) for other in range(len(links))]
        at = rng.choices(range(len(links)), weights)[0]
        if at != start and at not in reviewers:
            reviewers.append(at)
    return reviewers


def agree(first: Point | None, other: Point | None, within_km: float) -> bool:
    """Whether two answers name one place; an answer without a point agrees with none."""
    return first is not None and other is not None and distance_km(*first, *other) <= within_km


def group_answers(statements: Sequence[Said], within_km: float) -> list[list[Said]]:
    """Groups of answers that are near each other, the largest first."""
    groups: list[list[Said]] = []
    for statement in statements:
        home = next((group for group in groups if agree(statement.place, group[0].place, within_km)), None)
        if home is None:
            groups.append([statement])
        else:
            home.append(statement)
    return sorted(groups, key=len, reverse=True)


def is_consensus(statements: Sequence[Said], within_km: float) -> bool:
    """Whether all name one place."""
    return bool(statements) and statements[0].place is not None and len(group_answers(statements, within_km)) == 1


def conclude(statements: Sequence[Said], within_km: float) -> tuple[str, str]:
    """(answer, how): consensus of all, else the larger part, else the first elected agent's answer."""
    groups = group_answers(statements, within_km)
    if is_consensus(statements, within_km):
        return groups[0][0].text, "consensus"
    if len(groups) > 1 and len(groups[0]) > len(groups[1]) and groups[0][0].place is not None:
        return groups[0][0].text, "majority"
    return statements[0].text, "first_elected"


@dataclass
class Swarm:
    """The agents before one picture."""

    chat: Chat
    settings: SwarmSettings
    picture: Picture
    locate_answer: Callable[[str], Awaitable[Point | None]]
    tools: Toolbox = field(default_factory=Toolbox)
    max_tokens: int | None = 512
    seed: object = ""

    @property
    def agents(self) -> range:
        return range(len(self.settings.agents))

    @property
    def same_km(self) -> float:
        return self.settings.same_km

    async def locate(self, election: Sequence[float], links: Matrix) -> Outcome:
        """The three stages of the paper: answers, reviews, discussion."""
        rng = random.Random(stable_seed("swarm", self.seed))
        outcome = Outcome(answerers=elect(election, self.settings.answerers, rng))
        first = await self.ask(outcome.answerers, ASK, "answer", outcome)
        outcome.finals = await self.refine(first, links, rng, outcome)
        for number in range(1, self.settings.rounds + 1):
            if is_consensus(outcome.finals, self.same_km):
                break  # consensus ends the discussion early
            outcome.rounds = number
            for at, statement in enumerate(outcome.finals):  # each speaks once a round, hearing what was said before it
                text = self.discussion(outcome.finals, at)
                outcome.finals[at] = await self.say(statement.agent, text, f"round {number}", outcome)
        outcome.text, outcome.how = conclude(outcome.finals, self.same_km)
        return outcome

    async def ask(self, agents: Sequence[int], text: str, when: str, outcome: Outcome) -> list[Said]:
        """The same question to several agents."""
        return list(await asyncio.gather(*(self.say(agent, text, when, outcome) for agent in agents)))

    async def refine(
        self, first: Sequence[Said], links: Matrix, rng: random.Random, outcome: Outcome, key: str = ""
    ) -> list[Said]:
        """Stage 2: reviewers by random walk comment on each answer, and its agent sums up."""
        outcome.reviews = {
            statement.agent: walk_reviewers(links, statement.agent, self.settings.reviewers, rng) for statement in first
        }
        return list(await asyncio.gather(*(self._refine(statement, outcome, key) for statement in first)))

    async def _refine(self, statement: Said, outcome: Outcome, key: str) -> Said:
        text = f"{REVIEW}\n\n{self.cut(['Agent 1: ' + statement.text])}\n\n{ASK}"
        comments = await self.ask(outcome.reviews[statement.agent], text, f"review{key} of {statement.agent}", outcome)
        if not comments:
            return statement
        heard = [
            f"Agent 1 (you): {statement.text}",
            *(f"Agent {at}: {comment.text}" for at, comment in enumerate(comments, 2)),
        ]
        text = f"{SUMMARISE}\n\n{self.cut(heard)}\n\n{ASK}"
        return await self.say(statement.agent, text, f"summary{key}", outcome)

    def discussion(self, statements: Sequence[Said], own: int, words: str = DISCUSS) -> str:
        """What an agent is told of a discussion: everyone's last words, anonymously."""
        heard = [
            f"Agent {at + 1}{' (you)' if at == own else ''}: {statement.text}"
            for at, statement in enumerate(statements)
        ]
        return f"{words}\n\n{self.cut(heard)}\n\n{ASK}"

    async def say(self, agent: int, text: str, when: str, outcome: Outcome) -> Said:
        """One agent's words, with what its web search found, and the place they name."""
        if self.settings.web_search:
            text = f"{PAGES}\n{await self._pages(agent, outcome)}\n\n{text}"
        reply = await self._complete(agent, text, when, outcome)
        statement = Said(agent, reply, when, await self.locate_answer(reply))
        outcome.log.append(statement)
        return statement

    async def _pages(self, agent: int, outcome: Outcome) -> str:
        """What the agent's own search finds, once a picture; a service that fails raises."""
        if agent not in outcome.pages:
            written = _OBJECT.search(await self._complete(agent, SEARCH, "search", outcome))
            listed = (json_object(written.group()) or {}).get("queries") if written else None
            query = str(listed[0] if isinstance(listed, list) and listed else listed or "")[:QUERY_CHARS].strip()
            call = ToolCall("search", "search_web", json.dumps({"query": query}))
            result = await self.tools.call(call, None, ("search_web",)) if query else None
            if result is not None and result.record.outage:
                told = f"the web search did not answer: {result.record.outage}"
                raise ServiceError("search", "outage", told, retryable=True)
            listed = (json_object(result.text) or {}).get("results", []) if result is not None else []
            lines = (f"Page {at}: {page['title']}. {page['content']}" for at, page in enumerate(listed, 1))
            outcome.pages[agent] = "\n".join(" ".join(line.split()) for line in lines) or "It found none."
        return outcome.pages[agent]

    async def _complete(self, agent: int, text: str, when: str, outcome: Outcome) -> str:
        role, persona = self.settings.cast[agent]
        image = {"type": "image_url", "image_url": {"url": self.picture.view_uri}}
        messages: list[Message] = [{"role": "user", "content": [image, text_part(text)]}]
        if persona:
            messages.insert(0, {"role": "system", "content": self.settings.personas[persona]})
        reply = await self.chat.complete(
            role,
            messages,
            temperature=self.settings.temperature,
            seed=stable_seed("swarm", self.seed, when, agent),
            max_tokens=self.max_tokens,
        )
        outcome.usage += reply.usage
        return reply.text

    def cut(self, heard: Sequence[str]) -> str:
        """What was said, each as much as an agent's context takes of it: its end, where the answer stands."""
        each = self.settings.context_chars // max(1, len(heard))
        return "\n\n".join(
            text if len(text) <= each else f"{text[:40]} … {text[-max(0, each - 43) :]}" for text in heard
        )
