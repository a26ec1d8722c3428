"""GeoAgent's three-level chain of thought: country, region, precise place, each from clues to conclusion and doubt."""

from __future__ import annotations

import re
from typing import Any

from infra.offline.chat.agent_state import State
from infra.offline.chat.answer_form import Answer
from infra.offline.chat.beliefs import Belief
from infra.offline.chat.clues import street_in
from infra.offline.chat.consistency import conclude
from infra.offline.chat.placenames import fold, place_names
from infra.offline.chat.reasoning import read_reasoning


def level_thoughts(answer: Answer, state: State, belief: Belief) -> dict[str, Any]:
    """The levels under the recipe's names, and the final answer `Country; Region; Specific Location`."""
    words, reasons = state.notes.words, belief.reasons
    road = [reason for reason in reasons if "traffic" in reason or "line is" in reason]
    script = [reason for reason in reasons if reason not in road]
    nature = _surroundings(state)
    named = [word for word in words if place_names().mentions(word, fuzzy=False)]
    streets = [street[0] for word in words if (street := street_in(word))]
    region, country, city = answer.region or answer.city, answer.country, answer.city
    doubt = round(1 - answer.confidence, 2)
    first = _level(
        [*road, *script[:3], *nature[:1]],
        f"{_sentence([*road, *script[:3]]) or 'The writing says little.'} {nature[0]} Taken together these clues fit "
        f"{country or 'no country'} better than its neighbours, where at least one of them would look different.",
        country,
        f"{grade(doubt / 2)} ({doubt / 2:.2f}): countries with the same language and road rules remain possible",
    )
    second = _level(
        [*(f"the sign '{word}'" for word in named[:3]), *nature],
        f"{_named(named)} Within {country} the names on the signs and the surroundings ({'; '.join(nature)}) speak for "
        f"{region}, since {city or 'the town they point to'} lies there and no other division has all of these names.",
        region,
        f"{grade(doubt * 0.8)} ({doubt * 0.8:.2f}): a namesake in another division cannot be excluded",
    )
    third = _level(
        [*(f"the street '{street}'" for street in streets[:2]), *(f"the text '{word}'" for word in words[:3])],
        f"{_precise(streets, words)} The best explanation for all of them is {answer.value('place') or region}: it is "
        f"the place of that name that fits the level above, and the density of houses and the kind of street do not "
        "speak against it.",
        answer.value("place") or region,
        f"{grade(doubt)} ({doubt:.2f}): the exact street is known only where a sign names it",
    )
    return {
        "CountryIdentification": first,
        "country_identification": first,
        "RegionalGuess": second,
        "regional_guess": second,
        "PreciseLocalization": third,
        "precise_localization": third,
        "FinalAnswer": answer.value("levels"),
    }


def levels_of_notes(text: str) -> dict[str, Any]:
    """The levels as a person's notes support them: their sentences and names, and nothing else."""
    support = read_reasoning(text)
    found = conclude(support)
    sentences = [part.strip() for part in re.split(r"(?<=[.!?;])\s+|\n", text) if part.strip()]
    names = {level: conclusion.name for level, conclusion in found.items()}
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
        doubt = 0.9 if name is None else 0.2 if found[level].why.endswith("is named") else 0.5
        levels[key] = {
            "Clues": fresh if name else [],
            "Reasoning": " ".join(fresh or own) or f"{found[level].why}.",
            "Conclusion": name or "unknown",
            "Uncertainty": f"{grade(doubt)} ({doubt:.2f}): {found[level].why}",
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


def _named(named: list[str]) -> str:
    return f"The writing '{named[0]}' names a place." if named else "No sign names a place outright."


def _precise(streets: list[str], words: list[str]) -> str:
    if streets:
        return f"A sign gives the street: '{streets[0]}'."
    if words:
        return f"The largest writing is '{words[0]}'."
    return "There is no writing that could name the street."
