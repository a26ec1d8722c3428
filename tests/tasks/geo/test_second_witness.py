"""Rules by which a street picture contradicts the ground at its position."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.geo.second_witness import contradiction, contradictions

COVERS = ("water", "woods", "plants", "built_up", "bare", "snow")
NAMES = ("buildings", "plants", "traffic", "manmade", "natural")
scenes = st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from(["yes", "maybe", "no", "perhaps"])))
cover = st.tuples(*[st.floats(0, 1)] * 6).map(
    lambda parts: {name: part / max(sum(parts), 1e-9) for name, part in zip(COVERS, parts, strict=True)}
)


def ground(**shares: float) -> dict[str, float]:
    return dict.fromkeys(COVERS, 0.0) | shares


@given(scenes, cover, cover)
def test_a_contradiction_is_a_share_and_at_least_its_strongest_rule(scenes, near, around):
    rules = contradictions(scenes, near, around)
    found = contradiction(scenes, near, around)
    assert all(0 < value <= 1 for value in rules.values())
    assert max(rules.values(), default=0) - 1e-3 <= found <= 1


def test_what_a_person_would_say():
    town = {"buildings": "yes", "traffic": "yes", "manmade": "yes", "plants": "no"}
    path = {"buildings": "no", "traffic": "no", "manmade": "no", "plants": "yes"}
    street, sea, wood = ground(built_up=0.8, bare=0.2), ground(water=1.0), ground(woods=1.0)
    assert contradiction(town, street, street) == contradiction(path, wood, wood) == 0
    assert contradiction(town, sea, sea) == contradiction(path, sea, sea) == 1
    assert contradiction(town, wood, wood) == 1
    quay, farm = ground(water=0.55, built_up=0.45), ground(plants=0.93, built_up=0.07)
    assert contradiction(town, quay, quay) == 0 and contradiction(town, farm, farm) < 0.2
    park = ground(built_up=1.0)
    assert 0 < contradiction(path, park, park) < 0.5, "a park is no proof"
    road = {"buildings": "no", "traffic": "yes", "manmade": "yes", "plants": "yes"}
    assert contradiction(road, wood, wood) < 0.5, "a country road has no town around it"
    assert contradiction({}, street, street) < 0.5 and "in_the_water" in contradictions(town, sea, sea)
