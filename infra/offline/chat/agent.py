"""The agent: one model that sees the picture, thinks, calls tools and answers (a single agent of SpotAgent's kind)."""

from __future__ import annotations

import json
import random
import re

from infra.offline.chat import writer
from infra.offline.chat.agent_state import State, read_state
from infra.offline.chat.answer_form import Answer, write_answer
from infra.offline.chat.beliefs import Belief, shaken, weigh
from infra.offline.chat.clues import street_in
from infra.offline.chat.notes import Notes
from infra.offline.chat.observer import clarity_of, light_of
from infra.offline.chat.planner import call, conclude, trajectory_dice
from infra.offline.chat.policy import Action, next_action
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.telling import Teller
from infra.offline.chat.toolbelt import ZOOM, Tool, offered

_THOUSAND = re.compile(r"normali[sz]ed|0\s*(?:-|to|\.\.)\s*1000|\[0, ?1000\]", re.IGNORECASE)


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """A thought with a tool call, a thought with the answer, or the JSON a recipe asks for."""
    state = read_state(request, dice)
    belief = shaken(weigh(state.notes), trajectory_dice(request, dice), request.temperature)
    if writer.is_asked(request):
        return writer.write(request, state, belief, dice)
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
