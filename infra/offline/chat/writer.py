"""What recipes ask a model to write as JSON: boxes and queries, three-level thoughts (GeoAgent), confidence, reviews of
others.

The fields come from the asked schema, or from the object the prompt shows; the values from the model's own look and
belief. A field that is asked for is filled.
"""

import random
import re
from dataclasses import replace
from typing import Any

from infra.offline.chat.agent_state import State
from infra.offline.chat.answer_form import Answer, field_of, fill_schema, prompt_of, templates_in
from infra.offline.chat.beliefs import LARGEST, Belief, Guess
from infra.offline.chat.clues import areas_in, street_in
from infra.offline.chat.consistency import conclude, read_reasoning
from infra.offline.chat.notes import offered
from infra.offline.chat.observer import facts_of
from infra.offline.chat.placenames import division_of_area, fold, place_names, towns_of_area
from infra.offline.chat.policy import boxes_worth_zooming
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.verifier import judge_candidates, read_candidates

MOST_PROPOSALS = 4


def level_thoughts(answer: Answer, state: State, belief: Belief) -> dict[str, Any]:
    """The levels under the recipe's names, and the final answer `Country; Region; Specific Location`."""
    words, reasons = state.notes.words, belief.reasons
    road = [reason for reason in reasons if "traffic" in reason or "line is" in reason]
    script = [reason for reason in reasons if reason not in road]
    nature = _surroundings(state)
    named = [word for word in words if place_names().mentions(word, fuzzy=False)]
    streets = [street[0] for word in words if (street := street_in(word))]
    guess = next((guess for guess in belief.guesses if guess.city == answer.city), None)
    answer, by_area = _by_area(answer, guess, words, streets)
    region, country, city = answer.region or answer.city, answer.country, answer.city
    why_place = f"{by_area}, and no sign names a town." if by_area else _why_town(guess, city, country)
    why_region = by_area or f"{why_place} {city or 'The town'} lies in {region}"
    doubt = round(1 - answer.confidence, 2)
    first = _level(
        [*road, *script[:3], *nature[:1]],
        f"{_sentence([*road, *script[:3]]) or 'The writing says little.'} {nature[0]} Together these clues fit "
        f"{country or 'no country'} best.",
        country,
        f"{grade(doubt / 2)} ({doubt / 2:.2f}): countries with the same language and road rules remain possible",
    )
    second = _level(
        [*(f"the sign '{word}'" for word in named[:3]), *([by_area] if by_area else []), *nature],
        f"{_named(named, guess)} {why_region}, so within {country} I take {region}. The surroundings "
        f"({'; '.join(nature)}) alone would not decide it.",
        region,
        f"{grade(doubt * 0.8)} ({doubt * 0.8:.2f}): a namesake in another division cannot be excluded",
    )
    third = _level(
        [*(f"the street '{street}'" for street in streets[:2]), *(f"the text '{word}'" for word in words[:3])],
        f"{_precise(streets, words)} {why_place} That makes {answer.value('place') or region} "
        "the place I name; the picture alone does not tell the house.",
        answer.value("place") or region,
        f"{grade(doubt)} ({doubt:.2f}): the exact street is known only where a sign names it",
    )
    levels = {"CountryIdentification": first, "RegionalGuess": second, "PreciseLocalization": third}
    return {**levels, "FinalAnswer": answer.value("levels")}


def _by_area(answer: Answer, guess: Guess | None, words: list[str], streets: list[str]) -> tuple[Answer, str]:
    """Where no town is certain: the answer with the division of the area code that was read, and the reason."""
    if guess is None or guess.why != LARGEST:
        return answer, ""
    for area in areas_in(words):
        division, towns = division_of_area(guess.country, area), towns_of_area(guess.country, area)
        if division and towns:
            street = streets[0] if streets else ""
            named = replace(answer, region=division, city="" if street else towns[0].name, street=street)
            return named, f"The area code {area:02d} on a sign is that of {division}"
    return answer, ""


def levels_of_notes(text: str) -> dict[str, Any]:
    """The levels as a person's notes support them: their sentences and names, and nothing else."""
    support = read_reasoning(text)
    conclusions = conclude(support)
    sentences = [part.strip() for part in re.split(r"(?<=[.!?;])\s+|\n", text) if part.strip()]
    names = {level: conclusion.name for level, conclusion in conclusions.items()}
    taken: set[str] = set()
    levels: dict[str, Any] = {}
    keys = (("country", "CountryIdentification"), ("region", "RegionalGuess"), ("place", "PreciseLocalization"))
    for number, (level, key) in enumerate(keys):
        name = names[level]
        own = [s for s in sentences if name and fold(name) in fold(s)]
        if number == 0:  # what names no level at all is a clue to the country
            own += [s for s in sentences if not any(n and fold(n) in fold(s) for n in names.values())]
        fresh = [sentence for sentence in dict.fromkeys(own) if sentence not in taken]
        taken |= set(fresh)
        doubt = 0.9 if name is None else 0.2 if conclusions[level].why.endswith("is named") else 0.5
        levels[key] = {
            "Clues": fresh if name else [],
            "Reasoning": " ".join(fresh or own) or f"{conclusions[level].why}.",
            "Conclusion": name or "unknown",
            "Uncertainty": f"{grade(doubt)} ({doubt:.2f}): {conclusions[level].why}",
        }
    levels["FinalAnswer"] = "; ".join(names[level] or "unknown" for level, _ in keys)
    return levels


def grade(doubt: float) -> str:
    """How uncertain something is, in a word."""
    return "Low" if doubt < 0.3 else "Moderate" if doubt < 0.65 else "High"


def _level(clues: list[str], reasoning: str, conclusion: Any, uncertainty: str) -> dict[str, Any]:
    return {
        "Clues": clues or ["the scene as a whole"],
        "Reasoning": " ".join(reasoning.split()),
        "Conclusion": conclusion or "unknown",
        "Uncertainty": uncertainty,
    }


def _surroundings(state: State) -> list[str]:
    if state.whole is None:
        return ["the surroundings are not described."]
    scene = state.whole.scene
    plants = "much" if scene.green_share > 0.2 else "some" if scene.green_share > 0.05 else "little"
    houses = "dense houses" if scene.building_share > 0.12 else "scattered houses"
    return [f"There is {plants} green, the ground is {scene.ground} and the sky {scene.sky}.", houses]


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _why_town(guess: Guess | None, city: str, country: str) -> str:
    """Why this town, in a sentence."""
    if guess is None or not city:
        return "No town is certain."
    if guess.why == LARGEST:
        return f"No town is certain, and {city} is the largest city of {country}."
    return f"{guess.why[0].upper()}{guess.why[1:]}, which points to {city}."


def _named(named: list[str], guess: Guess | None) -> str:
    if named:
        return f"The writing '{named[0]}' holds a place's name."
    return "" if guess is not None and guess.why != LARGEST else "No sign names a place outright."


def _precise(streets: list[str], words: list[str]) -> str:
    if streets:
        return f"A sign gives the street: '{streets[0]}'."
    if words:
        return f"What can be read is '{words[0]}'."
    return "There is no writing that could name the street."


def wants_json(request: ChatRequest) -> bool:
    """Whether JSON is asked for: by response format, or by an object in the prompt that is more than an answer."""
    return request.response_schema is not None or (not offered(request) and _template(request) is not None)


def write_json(request: ChatRequest, state: State, belief: Belief, dice: random.Random, answer: Answer) -> Reply:
    """The JSON object with the caller's answer in it."""
    schema = request.response_schema or _template(request) or {}
    known = known_values(request, state, belief, dice, answer)
    if state.whole is None:
        known |= levels_of_notes(notes_in(request))
    return Reply(fill_schema(schema, known))


def weighed_with_others(request: ChatRequest, state: State, belief: Belief, own: Answer) -> tuple[Answer, str]:
    """Its own answer, or another's that its own look supports better; with the reason."""
    review = _review(request, state, belief)
    other = review["answer"]
    if review["number"] > 0 and isinstance(other, Answer):
        return replace(other, explanation=f"{own.explanation} {other.explanation}"), other.explanation
    return own, own.explanation


def known_values(
    request: ChatRequest, state: State, belief: Belief, dice: random.Random, own: Answer
) -> dict[str, Any]:
    """Everything the model could say, under the names recipes give it."""
    review = _review(request, state, belief)
    answer, thought = weighed_with_others(request, state, belief, own)
    levels = level_thoughts(answer, state, belief)
    words = state.notes.words
    return {
        **(facts_of(state.whole) if state.whole is not None else {}),
        **levels,
        **review["fields"],
        **{name: answer.value(name) for name in ("country", "region", "city", "place", "location", "lat", "lon")},
        **dict.fromkeys(("thought", "reasoning", "reason", "explanation"), thought),
        "confidence": answer.confidence,
        "clues": [*(f"text '{word}'" for word in words[:6]), *belief.reasons[:4]] or ["few clues stand out"],
        "text": words,
        "boxes": _boxes(state, dice, request.temperature),
        "queries": _queries(belief, answer, state),
    }


def _boxes(state: State, dice: random.Random, temperature: float) -> list[dict[str, Any]]:
    """Regions worth a closer look, each with its own thought; the middle of the street where no writing is seen."""
    proposals = boxes_worth_zooming(state.notes, dice, temperature)[:MOST_PROPOSALS]
    if state.whole is not None and not proposals:
        width, height = state.whole.width, state.whole.height
        middle = [width // 3, height // 3, 2 * width // 3, 2 * height // 3]
        proposals = [(middle, "the middle of the street, where the road leads to")]
    return [
        {
            "bbox_2d": box,
            "thought": f"I look at {what}: a name or a number there would narrow down the place.",
        }
        for box, what in proposals
    ]


def _queries(belief: Belief, answer: Answer, state: State) -> list[dict[str, Any]]:
    # What was newly read is said once, with the first proposal.
    read = [" ".join(state.told), *[""] * MOST_PROPOSALS]
    queries = belief.queries[:MOST_PROPOSALS] or [f"{answer.value('location')} streets and shops"]
    hope = "names as rare as these should point to one place"
    if not belief.queries:
        hope = "no name could be read, so I compare with what its streets are like"
    return [
        {
            "query": query,
            "rationale": f"Pages on {query} would say in which town these names are.",
            "thought": f"{seen} I search for {query}: {hope}.".strip(),
        }
        for query, seen in zip(queries, read, strict=False)
    ]


def _review(request: ChatRequest, state: State, belief: Belief) -> dict[str, Any]:
    """What the model makes of others' answers, if there are any in the request."""
    candidates, sent = read_candidates(request) if has_other_answers(request) else ([], 0)
    if not sent:
        return {"number": 0, "answer": None, "fields": {}}
    verdict = judge_candidates(candidates, state.notes, belief)
    own = belief.best
    agrees = verdict.number > 0
    told = verdict.why
    if candidates and own is not None and not agrees:
        told = f"What I see points to {own.city or own.country_name} ({own.why}). {told}"
    fields = {"agree": agrees, "comment": told, "review": told}
    return {"number": verdict.number, "answer": verdict.answer, "fields": fields}


def notes_in(request: ChatRequest) -> str:
    """A person's notes in a request without pictures: what follows the last mention of notes, else all of it."""
    text = "\n".join(message.text for message in request.messages if message.role == "user")
    return text[text.rfind("notes:") + 6 :] if "notes:" in text else text


def has_other_answers(request: ChatRequest) -> bool:
    """Whether the request tells of other agents' answers."""
    told = prompt_of(request).lower()
    return any(
        word in told for word in ("candidate", "another agent", "other agent", "review", "trajectory", "colleague")
    )


def _template(request: ChatRequest) -> dict[str, Any] | None:
    """The object the prompt shows, if it asks for more than where the picture was taken."""
    for template in reversed(templates_in(prompt_of(request))):
        keys = set(template["properties"])
        if keys & {"name", "arguments"} == {"name", "arguments"}:
            continue  # how a tool call is written
        return template if any(field_of(key) is None for key in keys) else None
    return None
