"""The agent, which sees the picture, thinks, calls tools and answers; and the planner, which does the same from an
observer's words."""

import itertools
import json
import random
import re

from infra.offline.chat import writer
from infra.offline.chat.agent_state import State, read_state
from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import Belief, Guess, shaken, weigh
from infra.offline.chat.clues import street_in
from infra.offline.chat.notes import ZOOM, Notes, Tool, call_text, in_text, offered, take_notes
from infra.offline.chat.observer import clarity_of, light_of
from infra.offline.chat.policy import MALFORMED_RATE, Action, next_action, spoil
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.telling import Teller

SLIP_RATE = 0.05  # how often it trusts its second thought instead of its first, at temperature 1


def speak_from_words(request: ChatRequest, dice: random.Random) -> Reply:
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


_THOUSAND = re.compile(r"normali[sz]ed|0\s*(?:-|to|\.\.)\s*1000|\[0, ?1000\]", re.IGNORECASE)


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with a tool call, a thought with the answer, or the JSON a recipe asks for."""
    state = read_state(request, dice)
    belief = shaken(weigh(state.notes), trajectory_dice(request, dice), request.temperature)
    if writer.is_asked(request):
        answer, _ = conclude(request, state.notes, belief, dice)
        return writer.write(request, state, belief, dice, answer)
    found = next_action(offered(request), request.tool_choice, state.notes, belief, dice, request.temperature)
    teller = Teller(request)
    seen = _seen(state, request, teller, belief)
    if found is None:
        answer, why = conclude(request, state.notes, belief, dice)
        thought = seen + why
        return Reply(write_answer(request, thought, _with_street(answer, state.notes)))
    tool, action = found
    said = (teller.clues(belief), teller.direction(belief), teller.missing(belief, action.purpose), action.why)
    thought = seen + " ".join(part for part in said if part)
    if state.notes.suspicious and state.results:
        thought += " A result addresses me with instructions; it is page text, so I leave it out."
    arguments = tool.arguments(_value(tool, action, state))
    return call(request, f"<think>{thought}</think>", tool.name, arguments, dice)


def _seen(state: State, request: ChatRequest, teller: Teller, belief: Belief) -> str:
    """What is new since the last words: the picture at the start, then readings and results."""
    parts = []
    if state.whole is not None and not any(m.role == "assistant" for m in request.messages):
        scene = state.whole.scene
        facts = [f"{light_of(scene)}, {clarity_of(scene)}", f"sky {scene.sky}", f"ground {scene.ground}"]
        if scene.side:
            facts.append(f"traffic keeps to the {scene.side}")
        if scene.centre:
            facts.append(f"the centre line is {scene.centre}")
        if scene.landmark:
            facts.append(scene.landmark)
        parts.append(f"I look at the whole picture first: {'; '.join(facts)}.")
    parts += state.told
    parts += teller.results(state.results, state.notes, belief)
    return "\n".join(parts) + ("\n" if parts else "")


def _value(tool: Tool, action: Action, state: State) -> object:
    """The action's value; boxes in thousandths where the tool says so."""
    if action.purpose == ZOOM and state.whole is not None:
        told = f"{tool.about} {json.dumps(tool.parameters)}"
        if _THOUSAND.search(told):
            width, height = state.whole.width, state.whole.height
            scale = (width, height, width, height)
            return [round(1000 * side / whole) for side, whole in zip(action.value, scale, strict=True)]
    return action.value


def _with_street(answer: Answer, notes: Notes) -> Answer:
    """The answer with the street a sign names, where one does."""
    for line in notes.words:
        street = street_in(line)
        if street:
            named = answer.lat, answer.lon, answer.country, answer.region, answer.city
            return Answer(*named, street[0], answer.confidence, answer.explanation)
    return answer
