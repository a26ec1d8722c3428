"""The reasoning of a GeoAgent completion, level by level: CountryIdentification, RegionalGuess, PreciseLocalization."""

import json
import re
from typing import Any

from tasks.reward.fields import object_spans

# The paper writes the second level in two ways.
_LEVELS = (("countryidentification",), ("regionalguess", "regionguess"), ("preciselocalization",))
_TEXTS = ("Clues", "Reasoning")  # what bears the conclusion; the conclusion itself is what is to be found
_MOST = 20_000


def level_reasoning(completion: str) -> tuple[str, str, str]:
    """The reasoning a level, empty where a level is missing or the completion is not in the recipe's form."""
    text = completion[:_MOST]
    for start, end in object_spans(text):
        try:
            value = json.loads(text[start:end])
        except (ValueError, RecursionError):
            continue
        chain = value.get("ChainOfThought", value) if isinstance(value, dict) else None
        if isinstance(chain, dict):
            named = {re.sub(r"[\W_]", "", str(key)).casefold(): part for key, part in chain.items()}
            if any(name in named for names in _LEVELS for name in names):
                country, region, place = (
                    _said(next((named[name] for name in names if name in named), None)) for names in _LEVELS
                )
                return country, region, place
    return "", "", ""


def _said(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    found: list[str] = []
    for name in _TEXTS:
        value = part.get(name, part.get(name.casefold()))
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            found += [str(one) for one in value if isinstance(one, str)]
    return " ".join(found).strip()
