"""Lessons in quoting: say again what stands in the conversation. Random letters and numbers, no place among them.

A base that was only ever asked about pictures has never repeated a word it was told: the part of attention that looks
for what followed the same letters before (an induction head) is not there. An agent needs it to carry a tool's
coordinates into its answer, so it is practised first, in texts of the form tools and answers have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from infra.pretrain.tokens import IGNORED, Tokens

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "ri",
    "so",
    "tu",
    "va",
    "we",
    "xi",
    "yo",
    "za",
    "ar",
    "el",
    "in",
    "or",
    "un",
    "st",
    "kr",
    "dr",
    "ll",
    "nn",
]
Exchange = tuple[list[int], list[int]]  # ids and labels


def repeat(tokens: Tokens, rng: random.Random, count: int) -> Exchange:
    """A string of random letters twice; the second time is learned."""
    said = [tokens.encode(rng.choice(LETTERS))[0] for _ in range(count)]
    mark = tokens.encode("\n")
    return [*said, *mark, *said, tokens.end], [*[IGNORED] * (count + len(mark)), *said, tokens.end]


def record(tokens: Tokens, rng: random.Random) -> Exchange:
    """What a geocoder could have found, and the answer's four lines copied from it; the answer is learned."""
    lat, lon = rng.uniform(-89, 89), rng.uniform(-179, 179)
    street, city, region, country = (_name(rng) for _ in range(4))
    value = {"results": [{
        "lat": round(lat, 7), "lon": round(lon, 7), "name": street,
        "display_name": ", ".join((street, city, region, country)), "country": country,
        "country_code": country[:2].upper(), "region": region, "city": city, "importance": round(rng.random(), 3),
    }]}  # fmt: skip
    told = json.dumps(value, ensure_ascii=False)
    before = f"<|im_start|>user\n<tool_response>\n{told}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    said = f"<answer>\nCountry: {country}\nCity: {city}\nLatitude: {shortened(lat)}\nLongitude: {shortened(lon)}\n"
    asked, answer = tokens.encode(before), [*tokens.encode(said + "</answer>"), tokens.end]
    return [*asked, *answer], [*[IGNORED] * len(asked), *answer]


def shortened(degrees: float) -> str:
    """The number as it is copied letter by letter: two decimals, cut and not rounded."""
    whole, _, decimals = f"{degrees:.7f}".partition(".")
    return f"{whole}.{decimals[:2]}"


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randrange(2, 5))).capitalize()


def padded(exchanges: Sequence[Exchange], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and labels, all as long as the longest."""
    length = max(len(ids) for ids, _ in exchanges)
    return (
        [[*ids, *[pad] * (length - len(ids))] for ids, _ in exchanges],
        [[*labels, *[IGNORED] * (length - len(labels))] for _, labels in exchanges],
    )
