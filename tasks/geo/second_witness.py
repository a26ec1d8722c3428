"""Whether a street picture can have been taken where it says: what it shows against the ground seen from above.

What the picture shows are a judge's scene categories (yes, maybe, no); the ground is shares of water, woods, plants,
built-up and bare ground within a few hundred metres. Each rule says how strongly the two contradict each other, 0 to 1;
the strongest counts. One sign alone proves little, so thresholds are set by how often pictures in their right place
would be accused (`python -m bench second_witness`).
"""

from collections.abc import Mapping

SURE = {"yes": 1.0, "maybe": 0.5, "no": 0.0}


def contradictions(
    scenes: Mapping[str, str], near: Mapping[str, float], around: Mapping[str, float]
) -> dict[str, float]:
    """How strongly each rule speaks against the position, by its name; only rules that say something."""
    shown = {name: SURE.get(answer, 0.5) for name, answer in scenes.items()}
    buildings, plants = shown.get("buildings", 0.5), shown.get("plants", 0.5)
    street = max(shown.get("traffic", 0.5), shown.get("manmade", 0.5))
    green = near["plants"] + near["woods"]
    found = {
        # Quays and bridges have water on both sides, and yet the far bank.
        "in_the_water": _over(near["water"], 0.6, 0.97),
        "houses_in_the_wild": buildings * _under(near["built_up"], 0.01, 0.06),
        # A country road has no town around it; a weak sign beside others.
        "street_in_the_wild": 0.3 * street * _under(max(near["built_up"], around["built_up"]), 0.002, 0.06),
        # A park is both.
        "nature_in_the_town": 0.4 * (1 - buildings) * (1 - street) * _over(near["built_up"], 0.7, 0.95),
        "woods_without_a_plant": (1 - plants) * _over(near["woods"] + 0.7 * near["plants"], 0.6, 0.95),
        "plants_in_the_desert": 0.6
        * plants
        * (1 - buildings)
        * _under(green + near["water"] + near["built_up"], 0.0, 0.1),
        "snow_on_the_ground": 0.5 * plants * _over(near["snow"], 0.7, 0.95),
    }
    return {name: round(value, 3) for name, value in found.items() if value > 0}


def contradiction(scenes: Mapping[str, str], near: Mapping[str, float], around: Mapping[str, float]) -> float:
    """The strongest of them, and a little of each other one: two weak signs are more than one."""
    values = sorted(contradictions(scenes, near, around).values(), reverse=True)
    left = 1.0
    for number, value in enumerate(values):
        left *= 1 - value * (1.0 if number == 0 else 0.5)
    return round(1 - left, 4)


def _over(value: float, low: float, high: float) -> float:
    """0 up to the low mark, 1 from the high one on."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _under(value: float, low: float, high: float) -> float:
    return 1 - _over(value, low, high)
