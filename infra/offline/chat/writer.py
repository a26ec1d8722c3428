"""What recipes ask a model to write as JSON: boxes and queries, three-level thoughts (GeoAgent), confidence, reviews of
others.

The fields come from the requested schema, or from the object the prompt shows; the values from the model's own look and
belief. A field that is requested is filled.
"""

import random
import re
from dataclasses import replace
from typing import Any

from infra.offline.chat.answer_form import Answer, field_of, fill_schema, shown_keys
from infra.offline.chat.beliefs import LARGEST, Belief, Guess
from infra.offline.chat.clues import areas_in
from infra.offline.chat.consistency import conclude
from infra.offline.chat.notes import Notes, boxes_worth_zooming
from infra.offline.chat.placenames import division_of_area, place_names, towns_of_area
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.scene import grade
from infra.offline.chat.verifier import judge_candidates, read_candidates
from infra.offline.words import fold

MOST_PROPOSALS = 4
LEVELS = {"country": "CountryIdentification", "region": "RegionalGuess", "place": "PreciseLocalization"}


def wants_json(request: ChatRequest) -> bool:
    """Whether JSON is requested: by response format, or by an object in the prompt that is more than an answer."""
    return request.response_schema is not None or (not request.tools and bool(_shown_form(request)))


def write_json(request: ChatRequest, notes: Notes, belief: Belief, dice: random.Random, answer: Answer) -> Reply:
    """The JSON object with the model's answer in it, or with another's that its own look supports better."""
    answer = weighed_with_others(request, notes, belief, answer)
    if notes.picture is None:
        # A person's notes, which follow the form that the prompt shows.
        levels = levels_of_notes(request.said_by("user").rpartition("}")[2])
    else:
        levels = level_thoughts(answer, notes, belief)
    known: dict[str, Any] = {
        # Everything the model could say, under the names recipes give it.
        **levels,
        "ChainOfThought": {key: levels[key] for key in LEVELS.values()},
        **{name: answer.value(name) for name in ("country", "region", "city", "place", "location", "lat", "lon")},
        **dict.fromkeys(("thought", "reasoning", "reason", "explanation"), answer.explanation),
        "confidence": answer.confidence,
        "clues": [*(f"text '{word}'" for word in notes.words[:6]), *belief.reasons[:4]] or ["few clues stand out"],
        "text": notes.words,
        "boxes": _boxes(notes, dice, request.temperature),
        "queries": _queries(belief, answer, notes),
    }
    if request.response_schema is not None:
        return Reply(fill_schema(request.response_schema, known))
    # Where no type is known, a query is the words alone.
    known["queries"] = [row["query"] for row in known["queries"]]
    return Reply(fill_schema({"properties": {key: {} for key in _shown_form(request)}}, known))


def _shown_form(request: ChatRequest) -> list[str]:
    """The keys of the last object the prompt shows that asks for more than where the picture was taken."""
    shown = [keys for keys in shown_keys(request.prompt) if not {"name", "arguments"} <= {*keys}]  # a tool call
    return next((keys for keys in reversed(shown) if any(field_of(key) is None for key in keys)), [])


def weighed_with_others(request: ChatRequest, notes: Notes, belief: Belief, own: Answer) -> Answer:
    """The model's own answer, or another's that its own look supports better."""
    candidates, sent = read_candidates(request)
    number, answer = judge_candidates(candidates, notes, belief) if sent else (0, own)
    return replace(answer, explanation=f"{own.explanation} {answer.explanation}") if number else own


def level_thoughts(answer: Answer, notes: Notes, belief: Belief) -> dict[str, Any]:
    """The levels under the recipe's names, and the final answer `Country; Region; Specific Location`."""
    words, streets = notes.words, notes.streets
    road = [reason for reason in belief.reasons if "traffic" in reason or "line is" in reason]
    script = [reason for reason in belief.reasons if reason not in road][:3]
    nature = _surroundings(notes)
    named = [word for word in words if place_names().mentions(word, fuzzy=False)]
    guess = next((guess for guess in belief.guesses if guess.city == answer.city), None)
    answer, by_area = _by_area(answer, guess, words, streets)
    region, country, city = answer.region or answer.city, answer.country, answer.city
    place = answer.place or region
    why_place = f"{by_area}, and no sign names a town." if by_area else _why_town(guess, city, country)
    why_region = by_area or f"{why_place} {city or 'The town'} lies in {region}"
    told = "; ".join([*road, *script])
    lead = f"{capital(told)}." if told else "The writing says little."
    no_name = "" if guess is not None and guess.why != LARGEST else "No sign names a place outright."
    writing = f"The writing '{named[0]}' holds a place's name." if named else no_name
    precise = f"What can be read is '{words[0]}'." if words else "There is no writing that could name the street."
    precise = f"A sign gives the street: '{streets[0]}'." if streets else precise
    doubt = round(1 - answer.confidence, 2)
    country_level = _level(
        [*road, *script, *nature[:1]],
        f"{lead} {nature[0]} Together these clues fit {country or 'no country'} best.",
        country,
        (doubt / 2, "countries with the same language and road rules remain possible"),
    )
    region_level = _level(
        [*(f"the sign '{word}'" for word in named[:3]), *filter(None, [by_area]), *nature],
        f"{writing} {why_region}, so within {country} I take {region}. The surroundings ({'; '.join(nature)}) "
        "alone would not decide it.",
        region,
        (doubt * 0.8, "a namesake in another division cannot be excluded"),
    )
    place_level = _level(
        [*(f"the street '{street}'" for street in streets[:2]), *(f"the text '{word}'" for word in words[:3])],
        f"{precise} {why_place} That makes {place} the place I name; the picture alone does not tell the house.",
        place,
        (doubt, "the exact street is known only where a sign names it"),
    )
    levels = dict(zip(LEVELS.values(), (country_level, region_level, place_level), strict=True))
    return {**levels, "FinalAnswer": answer.value("levels")}


def _by_area(answer: Answer, guess: Guess | None, words: list[str], streets: list[str]) -> tuple[Answer, str]:
    """Where no town is certain: the answer with the division of the area code that was read, and the reason."""
    if guess is None or guess.why != LARGEST:
        return answer, ""
    for area in areas_in(words):
        division, towns = division_of_area(guess.place.country, area), towns_of_area(guess.place.country, area)
        if division and towns:
            street = streets[0] if streets else ""
            named = replace(answer, region=division, city="" if street else towns[0].name, street=street)
            return named, f"The area code {area:02d} on a sign is that of {division}"
    return answer, ""


def levels_of_notes(text: str) -> dict[str, Any]:
    """The levels as a person's notes support them: their sentences and names, and nothing else."""
    conclusions, _ = conclude(text)
    names = {level: name for level, (name, _) in conclusions.items()}
    parts = (part.strip() for part in re.split(r"(?<=[.!?;])\s+|\n", text))
    sentences = [part for part in dict.fromkeys(parts) if part and not part.endswith(":")]
    levels: dict[str, Any] = {}
    for level, key in LEVELS.items():
        name, why = conclusions[level]
        # What names no level at all is a clue to the country.
        about = {s: [lv for lv, n in names.items() if n and fold(n) in fold(s)] or ["country"] for s in sentences}
        fresh = [sentence for sentence, of in about.items() if of[0] == level]
        own = fresh or [sentence for sentence, of in about.items() if level in of]
        doubt = 0.9 if name is None else 0.2 if why.endswith("is named") else 0.5
        levels[key] = _level(fresh, " ".join(own) or f"{why}.", name, (doubt, why))
        levels[key]["Clues"] = fresh if name else []
    return {**levels, "FinalAnswer": "; ".join(name or "unknown" for name in names.values())}


def _level(clues: list[str], reasoning: str, conclusion: str | None, doubt: tuple[float, str]) -> dict[str, Any]:
    """One level of the form; the uncertainty is a grade, a share and a reason."""
    share, why = doubt
    return {
        "Clues": clues or ["the scene as a whole"],
        "Reasoning": " ".join(reasoning.split()),
        "Conclusion": conclusion or "unknown",
        "Uncertainty": f"{grade(share, 'Low Moderate High', 0.3, 0.65)} ({share:.2f}): {why}",
    }


def _surroundings(notes: Notes) -> list[str]:
    if notes.picture is None:
        return ["the surroundings are not described."]
    scene = notes.picture.scene
    plants = grade(scene.green_share, "little some much", 0.05, 0.2)
    houses = grade(scene.building_share, "scattered dense", 0.12)
    return [f"There is {plants} green, the ground is {scene.ground} and the sky {scene.sky}.", f"{houses} houses"]


def _why_town(guess: Guess | None, city: str, country: str) -> str:
    """Why this town, in a sentence."""
    if guess is None or not city:
        return "No town is certain."
    if guess.why == LARGEST:
        return f"No town is certain, and {city} is the largest city of {country}."
    return f"{capital(guess.why)}, which points to {city}."


def _boxes(notes: Notes, dice: random.Random, temperature: float) -> list[dict[str, Any]]:
    """Regions worth a closer look, each with its own thought; the middle of the street where no writing is seen."""
    proposals = boxes_worth_zooming(notes, dice, temperature)[:MOST_PROPOSALS]
    if notes.picture is not None and not proposals:
        width, height = notes.picture.width, notes.picture.height
        middle = [width // 3, height // 3, 2 * width // 3, 2 * height // 3]
        proposals = [(middle, "the middle of the street, where the road leads to")]
    told = "I look at {}: a name or a number there would narrow down the place."
    return [{"bbox_2d": box, "thought": told.format(what)} for box, what in proposals]


def _queries(belief: Belief, answer: Answer, notes: Notes) -> list[dict[str, Any]]:
    """Searches worth making, each with its own thought; what was newly read stands once, with the first."""
    queries = belief.queries[:MOST_PROPOSALS] or [f"{answer.value('location')} streets and shops"]
    hope = "names as rare as these should point to one place"
    if not belief.queries:
        hope = "no name could be read, so I compare with what its streets are like"
    thoughts = [f"I search for {query}: {hope}." for query in queries]
    thoughts[0] = " ".join([*notes.fresh, thoughts[0]])
    return [{"query": query, "thought": thought} for query, thought in zip(queries, thoughts, strict=True)]


def capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]
