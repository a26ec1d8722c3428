"""The form an answer must have, which is the one its own prompt demands; any other teaches two forms."""

import json
import math
import re
from typing import Any

from tasks.agent.recipe import AnswerForm
from tasks.agent.recipes.geoagent import LEVELS, PARTS, UNCERTAINTIES
from tasks.agent.thought import split_thought

_LINES = re.compile(
    r"<answer>\s*Country: (?P<country>\S[^\n<]*)\nCity: (?P<city>\S[^\n<]*)\n"
    r"Latitude: (?P<lat>-?\d{1,2}(?:\.\d+)?)\nLongitude: (?P<lon>-?\d{1,3}(?:\.\d+)?)\s*</answer>"
)
_JSON = re.compile(r"<answer>\s*(\{.*\})\s*</answer>", re.DOTALL)


def form_error(form: AnswerForm, text: str) -> str | None:
    """What is wrong with the form of a final message, or None if it is the one asked for."""
    if form == "levels":
        return _levels_error(text)
    _, said = split_thought(text)
    if form == "lines":
        return None if _LINES.fullmatch(said) else "not the four lines inside <answer>"
    found = _JSON.fullmatch(said)
    value = _object(found.group(1)) if found else None
    if value is None:
        return "not one JSON object inside <answer>"
    if list(value) != ["lat", "lon", "city", "country"]:
        return "the keys are not lat, lon, city, country"
    if not all(_is_number(value[name]) for name in ("lat", "lon")):
        return "lat and lon are not numbers"
    return None if all(isinstance(value[name], str) for name in ("city", "country")) else "city or country is no text"


def read_levels(text: str) -> dict[str, Any] | None:
    """GeoAgent's object if the text is one of the right form, else None."""
    return None if _levels_error(text) else json.loads(text)


def _levels_error(text: str) -> str | None:
    value = _object(text.strip())
    chain = value.get("ChainOfThought") if value else None
    if value is None or not isinstance(chain, dict) or list(value) != ["ChainOfThought", "FinalAnswer"]:
        return "not one JSON object with ChainOfThought and FinalAnswer"
    if list(chain) != list(LEVELS):
        return f"the levels are not {', '.join(LEVELS)}"
    for name, level in chain.items():
        if not isinstance(level, dict) or list(level) != list(PARTS):
            return f"{name} does not have {', '.join(PARTS)}"
        clues = level["Clues"]
        if not isinstance(clues, list) or not all(isinstance(clue, str) and clue.strip() for clue in clues):
            return f"the Clues of {name} are no list of texts"
        if not all(isinstance(level[part], str) for part in PARTS[1:]) or level["Uncertainty"] not in UNCERTAINTIES:
            return f"a part of {name} is no text, or its Uncertainty none of {', '.join(UNCERTAINTIES)}"
    answer = value["FinalAnswer"]
    parts = [part.strip() for part in answer.split(";")] if isinstance(answer, str) else []
    return None if len(parts) == 3 and parts[0] else "FinalAnswer is not 'Country; Region; Specific Location'"


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
