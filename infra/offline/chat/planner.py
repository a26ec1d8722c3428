"""The planner: reads the observer's words and the tools' answers, and decides what to do next."""

from __future__ import annotations

import itertools
import json
import random

from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import Belief, Guess, shaken, weigh
from infra.offline.chat.notes import Notes, take_notes
from infra.offline.chat.policy import MALFORMED_RATE, next_action, spoil
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.telling import Teller
from infra.offline.chat.toolbelt import call_text, in_text, offered

SLIP_RATE = 0.05  # how often it trusts its second thought instead of its first, at temperature 1


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with one tool call, or a thought with the final answer."""
    notes = take_notes(request)
    belief = shaken(weigh(notes), trajectory_dice(request, dice), request.temperature)
    found = next_action(offered(request), request.tool_choice, notes, belief, dice, request.temperature)
    teller = Teller(request)
    told = teller.results(notes.results, notes, belief)
    if found is None:
        answer, why = conclude(request, notes, belief, dice)
        return Reply(write_answer(request, " ".join([*told, why]), answer))
    tool, action = found
    said = (*told, teller.clues(belief), teller.direction(belief), teller.missing(belief, action.purpose), action.why)
    thought = " ".join(part for part in said if part)
    if notes.suspicious and notes.results:
        thought += " One of the results addressed me with instructions; it is page text, so I leave it out."
    return call(request, f"<think>{thought}</think>", tool.name, tool.arguments(action.value), dice)


def call(request: ChatRequest, said: str, name: str, arguments: dict[str, object], dice: random.Random) -> Reply:
    """A reply that calls a tool, natively or as text, now and then malformed."""
    text = json.dumps(arguments, ensure_ascii=False)
    if dice.random() < MALFORMED_RATE:
        name, text = spoil(name, text, dice)
    return Reply(f"{said}\n{call_text(name, text)}") if in_text(request) else Reply(said, ((name, text),))


def trajectory_dice(request: ChatRequest, dice: random.Random) -> random.Random:
    """Chance that stays the same over a conversation: fixed by its opening and the seed.

    Without a seed, or with several choices of one seed, by the model's own first words.
    """
    if request.seed is not None and request.choices == 1:
        opening = itertools.takewhile(lambda message: message.role != "assistant", request.messages)
        shown = [(message.text, [picture.sha256 for picture in message.pictures]) for message in opening]
        return random.Random(f"{request.seed}/{shown}")
    first = next((m for m in request.messages if m.role == "assistant"), None)
    if first is None:
        return random.Random(dice.getrandbits(64))
    return random.Random(f"{first.text}/{[(c.name, c.arguments) for c in first.tool_calls]}")


def conclude(request: ChatRequest, notes: Notes, belief: Belief, dice: random.Random) -> tuple[Answer, str]:
    """The answer and the last thought."""
    guess = belief.best
    if belief.rivals and dice.random() < SLIP_RATE * request.temperature:
        guess = belief.rivals[0]
    if guess is None:
        guess = Guess("", "", "", 0.0, 0.0, 0.0, "nothing")
    thought = Teller(request).conclusion(notes, belief, guess)
    answer = Answer(
        guess.lat, guess.lon, guess.country_name, guess.region, guess.city, "", belief.confidence(guess), thought
    )
    return answer, thought
