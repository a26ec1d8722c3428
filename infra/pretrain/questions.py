"""What a base that can see is asked, and the answers: what is painted, never where it is."""

from __future__ import annotations

from infra.offline.place import Place

READ = ("Read line 1 of the sign.", "Read line 2 of the sign.")
SIDE = "Which side do they drive on?"
MIDDLE = "What colour is the middle line?"
EDGE = "What colour is the edge line?"
TREES = "Which plants grow there?"
HOUSES = "What are the houses like?"
BOX = "Where is the largest sign?"
ATTRIBUTES = (SIDE, MIDDLE, EDGE, TREES, HOUSES)

_TREES = {
    "arid": "dry shrubs",
    "tropical": "palms",
    "mediterranean": "cypresses",
    "temperate": "broadleaf trees",
    "boreal": "conifers",
    "polar": "low shrubs",
}
_HOUSES = {
    "nordic": "painted timber",
    "brick": "brick",
    "plaster": "plaster with steep roofs",
    "mediterranean": "pale stucco",
    "block": "concrete blocks",
    "wood": "clapboard",
    "asian": "grey tiles",
    "chinese": "tall flats",
    "tropical": "light walls",
    "indian": "pastel with flat roofs",
    "desert": "sand-coloured walls",
    "african": "low clay",
    "latin": "bright colours",
}


def answers_of(place: Place) -> dict[str, str]:
    """The attribute questions' answers for a street: what its pictures show."""
    facts = place.facts
    return {
        SIDE: facts.drives_on,
        MIDDLE: facts.centre_line,
        EDGE: facts.edge_line,
        TREES: _TREES[place.climate],
        HOUSES: _HOUSES[place.building_style],
    }


def box_text(box: tuple[float, float, float, float]) -> str:
    """A box in pixels of the picture as the model sees it, as the zoom tool takes it."""
    return "[" + ", ".join(str(round(edge)) for edge in box) + "]"


def all_texts() -> list[str]:
    """Every question and answer of a fixed wording, for a tokenizer to learn from."""
    return [*READ, *ATTRIBUTES, BOX, *_TREES.values(), *_HOUSES.values(), "left", "right", "white", "yellow", "none"]
