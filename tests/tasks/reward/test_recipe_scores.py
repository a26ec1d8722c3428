import json
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.errors import GeofixError
from schemas.settings.reward import RewardSettings
from tasks.recipes.geoagent import reward as geoagent
from tasks.recipes.geoagent.reward import Consistency
from tasks.recipes.geovista import reward as geovista
from tasks.recipes.recipe import RECIPES
from tasks.recipes.rewards import Reward, reward_for, reward_roles, reward_services, rewarded_recipes, score
from tasks.recipes.spotagent import reward as spotagent
from tasks.recipes.thinking_with_map import reward as thinking_with_map
from tasks.reward.advantage import group_advantages
from tasks.reward.answer import Address, ParsedAnswer, parse_answer
from tasks.reward.levels import Level, LevelVerdict, levels_by_rule, verdicts
from tasks.reward.outcome import Excluded, Scored, Truth
from tasks.reward.services import RewardDeps
from tasks.services.errors import ServiceError
from tasks.train import verl_hook
from tasks.train.rollouts.source import Episode, recipe_scorer
from tasks.train.token_samples import Completion

PARIS = Truth(48.8566, 2.3522, Address("France", "Île-de-France", "Paris"))
LOS_ANGELES = Truth(34.05, -118.24, Address("United States", "California", "Los Angeles"))
DISTANCES = st.floats(0, 20016)
REASONING = ("Plates are yellow and long.", "Haussmann facades stand along the boulevard.", "Quai sign.")


def embed(texts: Sequence[str]) -> np.ndarray:
    """Letter counts: enough to be 1 for equal names and less for others."""
    return np.array([[text.casefold().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])


def geocode(address: str) -> tuple[float, float] | None:
    return {"Paris, Île-de-France, France": (48.8566, 2.3522), "Lyon, Rhône, France": (45.76, 4.84)}.get(address)


# SpotAgent eq. 8


@pytest.mark.parametrize(
    ("error_km", "reward"),
    [(0, 1), (0.999, 1), (1, 1), (13, 0.875), (25, 0.75), (112.5, 0.475), (199.999999, 0.2), (200, 0), (20000, 0)],
)
def test_spotagent_values(error_km: float, reward: float) -> None:
    assert spotagent.reward_at(error_km) == pytest.approx(reward, abs=1e-6)


# Thinking with Map eq. 5


@pytest.mark.parametrize(
    ("error_km", "reward"),
    [(0, 1), (0.499, 1), (0.5, 0.8), (1.99, 0.8), (2, 0.6), (9.99, 0.6), (10, 0.4), (25, 0.2), (200, 0.1), (750, 0)],
)
def test_thinking_with_map_values(error_km: float, reward: float) -> None:
    assert thinking_with_map.reward_at(error_km) == reward


@pytest.mark.parametrize(
    "reward_at",
    [spotagent.reward_at, thinking_with_map.reward_at, geoagent.spatial_similarity],
    ids=lambda f: f.__module__,
)
@given(near=DISTANCES, farther=DISTANCES)
def test_farther_is_never_better(reward_at, near: float, farther: float) -> None:  # type: ignore[no-untyped-def]
    near, farther = sorted((near, farther))
    assert 1.0 >= reward_at(near) >= reward_at(farther) >= 0.0


def test_an_unreadable_distance_earns_nothing() -> None:
    assert spotagent.reward_at(math.nan) == thinking_with_map.reward_at(math.nan) == 0


@pytest.mark.parametrize("recipe", ["spotagent", "thinking-with-map"])
def test_point_recipes_on_answers(recipe: str) -> None:
    assert score(recipe, "<answer>48.8566, 2.3522</answer>", PARIS) == Scored(1.0, error_km=0.0)
    lost = score(recipe, "<answer>nowhere</answer>", PARIS)
    assert lost == Scored(0.0, reason="no_coordinates")
    assert score(recipe, "<answer>France; Île-de-France; Paris</answer>", PARIS) == lost


# GeoVista eq. 4


def test_geovista_values() -> None:
    assert [geovista.level_reward(*levels) for levels in [(1, 1, 1), (1, 1, 0), (1, 0, 0), (0, 0, 0)]] == [4, 2, 1, 0]
    assert geovista.level_reward(True, True, True, beta=3) == 9
    with pytest.raises(ValueError, match="above 1"):
        geovista.level_reward(True, False, False, beta=1)


def test_geovista_own_example() -> None:
    """A photo of Los Angeles: `Los Angeles` beats `San Francisco`, though both are right at the state level."""
    right = geovista.score("<answer>Los Angeles</answer>", LOS_ANGELES)
    near = geovista.score("<answer>San Francisco, California</answer>", LOS_ANGELES)
    assert isinstance(right, Scored) and isinstance(near, Scored)
    assert (right.reward, near.reward) == (4, 2)
    assert right.parts["province_or_state"] == near.parts["province_or_state"] == 1


@pytest.mark.parametrize(
    ("answer", "truth", "reward"),
    [
        ("France; Ile de France; PARÍS", PARIS, 4),
        ("Frankreich? No: France; Centre; Orléans", PARIS, 0),  # a country nobody knows by that name
        ('{"lat": 48, "lon": 2, "city": "Paris", "country": "FR"}', PARIS, 4),
        ("Paris, Texas, USA", PARIS, 0),
        ('{"country": "United States", "province_or_state": "Texas", "city": "Paris"}', PARIS, 0),
        ("巴黎", PARIS, 4),
        ("A street in Lyon, France", PARIS, 1),
        ("Houston, Texas, USA", LOS_ANGELES, 1),
        ("U.S.A.; CA; Fresno", LOS_ANGELES, 2),
        ("Fresno, CA", LOS_ANGELES, 2),
        ("Atlanta, Georgia", Truth(33.7, -84.4, Address("United States", "Georgia", "Atlanta")), 4),
        ("Tbilisi, Georgia", Truth(33.7, -84.4, Address("United States", "Georgia", "Atlanta")), 2),
        ("Santa Fe, New Mexico", Truth(35.7, -105.9, Address("United States", "New Mexico", "Santa Fe")), 4),
        ("Papua New Guinea", Truth(9.5, -13.7, Address("Guinea", None, "Conakry")), 0),
        ("South Korea; Seoul; Gangnam", Truth(37.5, 127, Address("Republic of Korea", "Seoul", "Gangnam-gu")), 2),
        ("München, Deutschland", Truth(48.1, 11.6, Address("Germany", "Bavaria", "Munich")), 4),
        ("Muenchen", Truth(48.1, 11.6, Address("Germany", "Bavaria", "München")), 4),
        ("Beijing (Dongcheng District); ;", Truth(39.9, 116.4, Address("China", "Beijing", "Beijing")), 0),
        ("China; Beijing Municipality; Beijing City", Truth(39.9, 116.4, Address("China", "Beijing", "Beijing")), 4),
        ("Łódź, Polska", Truth(51.8, 19.5, Address("Poland", "Łódź Voivodeship", "Lodz")), 4),
        ("", PARIS, 0),
    ],
)
def test_geovista_rule(answer: str, truth: Truth, reward: float) -> None:
    found = geovista.score(f"<answer>{answer}</answer>", truth)
    assert isinstance(found, Scored)
    assert found.reward == reward


def test_geovista_verifier_is_asked_where_the_rule_says_no_and_both_verdicts_stay() -> None:
    asked: list[Level] = []

    def verifier(level: Level, text: str, name: str) -> bool:
        asked.append(level)
        return level == "city"

    answer = ParsedAnswer(None, None, Address("France", "around the capital", "where the tower stands"), "France; ...")
    found = verdicts(answer, PARIS.address, verifier)
    assert asked == ["province_or_state", "city"]
    assert found["country"] == LevelVerdict(True, None)
    assert found["city"] == LevelVerdict(False, True) and found["city"].right
    assert geovista.score("<answer>the City of Light</answer>", PARIS, aliases={"Paris": ("City of Light",)}) == Scored(
        4.0, None, None, {"country": 1.0, "province_or_state": 1.0, "city": 1.0}
    )


def test_levels_missing_from_the_truth_are_not_judged() -> None:
    answer = ParsedAnswer(None, None, Address("Zambia", "Lusaka", "Kafue"), "Zambia; Lusaka; Kafue")
    found = levels_by_rule(answer, Address("Zambia", "Lusaka Province", None))
    assert found == {"country": True, "province_or_state": True, "city": None}


# GeoAgent eq. 3-9


def test_geoagent_spatial_is_eq_5() -> None:
    assert geoagent.spatial_similarity(0) == 1
    assert geoagent.spatial_similarity(200) == pytest.approx(1 / math.e)


def fixed(*similarities: float) -> geoagent.Embed:
    """Vectors whose cosine is the given one, level by level."""

    def embed_fixed(texts: Sequence[str]) -> np.ndarray:
        rows = []
        for similarity in similarities[: len(texts) // 2]:
            rows += [[similarity, math.sqrt(1 - similarity**2)], [2.0, 0.0]]
        return np.array(rows)

    return embed_fixed


@pytest.mark.parametrize(
    ("similarities", "expected"),
    [
        ((1, 1, 1), 1.0),
        ((0.9, 0.8, 0.6), 0.1 * 0.9 + 0.6 * 0.8 + 0.3 * 0.6),
        ((0.69, 1, 1), 0.0),  # country below 0.7: nothing finer counts
        ((0.9, 0.49, 1), 0.09),  # region below 0.5: the place does not count
        ((0.9, 0.8, 0.1), 0.09 + 0.48 + 0.03),  # no threshold on the place
        ((0.9, 0.8, -0.5), 0.09 + 0.48),
    ],
)
def test_geoagent_semantic_is_eq_7(similarities: tuple[float, ...], expected: float) -> None:
    said, truth = Address("a", "b", "c"), Address("x", "y", "z")
    assert geoagent.semantic_similarity(said, truth, fixed(*similarities)) == pytest.approx(expected)
    assert geoagent.semantic_similarity(truth, Address("X", "y.", "z"), fixed(*similarities)) == 1.0  # the same names


def test_geoagent_thresholds_follow_the_encoder() -> None:
    same_but_place = Address("France", "Île-de-France", "Pantin")
    vectors = {"paris": [1.0, 0.0], "pantin": [0.6, 0.8]}

    def near(texts: Sequence[str]) -> np.ndarray:
        return np.array([vectors.get(text.casefold(), [1.0, 0.0]) for text in texts])

    kept = geoagent.semantic_similarity(same_but_place, PARIS.address, near)
    cut = geoagent.semantic_similarity(same_but_place, PARIS.address, near, (0.7, 0.5, 0.61))
    assert (kept, cut) == (pytest.approx(0.7 + 0.3 * 0.6), pytest.approx(0.7))
    changed = RewardSettings(thresholds=(0.8, 0.6, 0.4))
    assert "thresholds" not in RewardSettings().identity() and "thresholds" in changed.identity()


def test_geoagent_prompts_have_the_papers_two_examples() -> None:
    examples = re.findall(r"Example\d: (<answer>.*</answer>)", RECIPES["geoagent"].direct.system)
    read = [parse_answer(example).address for example in examples]
    assert read == [
        Address("China", "Hong Kong", "Kowloon, Jordan Valley"),
        Address("United States", "MN, Saint Louis County", "Ash Lake"),
    ]


def test_geoagent_truth_without_a_place_can_be_fully_right() -> None:
    zambia = Address("Zambia", "Lusaka Province", None)  # GeoAgent fig. 10
    assert geoagent.semantic_similarity(zambia, zambia, embed) == pytest.approx(1)
    assert geoagent.semantic_similarity(Address("Zambia", None, None), zambia, embed) == pytest.approx(0.1 / 0.7)


def test_geoagent_consistency_is_eq_8_and_9() -> None:
    """The authors' code: lambda 8, mu 0.5, 90 to 200 characters, nothing below and all above."""
    assert geoagent.length_factors([0, 89, 201, 5000]) == (0, 0, 1, 1)
    assert geoagent.length_factors([90, 145, 200]) == pytest.approx(
        (1 / (1 + math.exp(4)), 0.5, 1 / (1 + math.exp(-4)))
    )
    assert list(geoagent.length_factors(range(0, 300))) == sorted(geoagent.length_factors(range(0, 300)))
    found = Consistency(Address("France", "Normandy", "Paris"), ("x" * 145, "x" * 201, "x" * 201))
    assert geoagent.consistency(found, PARIS.address) == pytest.approx(0.1 * 0.5 + 0.3)
    # against its own conclusion instead of the truth
    itself = Consistency(found.concluded, found.reasoning, against=Address("France", "Normandy", "Paris"))
    assert geoagent.consistency(itself, PARIS.address) == pytest.approx(0.1 * 0.5 + 0.6 + 0.3)
    assert geoagent.consistency(Consistency(PARIS.address, ("x",) * 3), PARIS.address) == 0


def test_geoagent_eq_9_as_printed() -> None:
    assert geoagent.length_factors([10, 20, 30], "printed") == pytest.approx(
        (1 / (1 + math.exp(4)), 0.5, 1 / (1 + math.exp(-4)))
    )
    assert geoagent.length_factors([7, 7, 7], "printed") == (1, 1, 1)
    assert geoagent.length_factors([0, 0, 0], "printed") == (0, 0, 0)


def test_geoagent_sum_is_eq_3() -> None:
    found = geoagent.score(
        "<answer>France; Île-de-France; Paris</answer>", PARIS, geocode, embed, Consistency(PARIS.address, REASONING)
    )
    assert isinstance(found, Scored)
    assert found.parts["spatial"] == 1 and found.parts["semantic"] == pytest.approx(1)
    assert found.reward == pytest.approx(1.5 + 1.0 + 0.5 * found.parts["consistency"])
    nowhere = geoagent.score("<answer>France; Île-de-France; Xyz</answer>", PARIS, geocode, embed)
    assert isinstance(nowhere, Scored) and nowhere.parts["spatial"] == 0 and nowhere.error_km is None
    assert geoagent.score("no idea", PARIS, geocode, embed) == Scored(0.0, reason="no_answer")
    assert geoagent.score("<answer>48.8, 2.3</answer>", PARIS, geocode, embed) == Scored(0.0, reason="no_address")


# The papers' ablations


def worth(recipe: str, answer: str, **settings: object) -> float:
    """An answer's reward through the call that the trainer makes, with levels of 201 letters of reasoning each."""
    chain = {
        name: {"Reasoning": "x" * 201} for name in ("CountryIdentification", "RegionalGuess", "PreciseLocalization")
    }
    asked = {"country": "France", "region": "Île-de-France", "place": "Paris"}
    chosen = RewardSettings.model_validate(settings)
    deps = RewardDeps(chosen, geocode, embed, lambda role, system, question: asked)
    found = score(recipe, json.dumps({"ChainOfThought": chain}) + f"<answer>{answer}</answer>", PARIS, deps)
    assert isinstance(found, Scored)
    return found.reward


@pytest.mark.parametrize(
    ("terms", "reward"),
    [
        (["spatial", "semantic", "consistency"], 3.0),  # GeoAgent
        (["semantic"], 1.0),  # w/o Spa & Con
        (["spatial"], 1.5),  # w/o Sem & Con
        (["spatial", "semantic"], 2.5),  # w/o Con
        (["consistency"], 0.5),  # w/o Spa & Sem
        (["judge"], 2.5),  # GeoAgent-SFT + Judge
        (["judge", "consistency"], 3.0),  # GeoAgent-SFT + Judge + Con
    ],
)
def test_a_term_of_geoagent_that_is_off_pays_nothing(terms: list[str], reward: float) -> None:
    """The gold answer's reward in every row of Tables 3 and 4."""
    assert worth("geoagent", "France; Île-de-France; Paris", terms=terms) == pytest.approx(reward)


def test_directly_judged_pays_equal_texts_alone() -> None:
    """Another name of the same place earns geo-similarity and nothing by the judge (fig. 3)."""
    gold, other = "France; Île-de-France; Paris", "France; Île-de-France; Paris City"
    assert worth("geoagent", gold.upper(), terms=["judge"]) == pytest.approx(2.5)
    assert worth("geoagent", other, terms=["judge"]) == pytest.approx(2.5 * 0.7)
    assert worth("geoagent", "France; Rhône; Paris", terms=["judge"]) == pytest.approx(2.5 * 0.4), "levels are apart"
    assert worth("geoagent", other, terms=["semantic"]) > 0.9
    zambia = Address("Zambia", "Lusaka Province", None)
    assert geoagent.directly_judged(zambia, zambia) == 1


def test_terms_that_are_off_ask_no_service() -> None:
    def asked(*terms: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        settings = RewardSettings.model_validate({"terms": terms})
        return reward_services("geoagent", settings), reward_roles("geoagent", settings)

    assert asked("spatial", "semantic", "consistency") == (("answer_geocoder", "chat"), ("embedder", "consistency"))
    assert asked("spatial") == (("answer_geocoder",), ())
    assert asked("semantic") == (("chat",), ("embedder",))
    assert asked("judge") == ((), ())
    assert reward_for("geoagent", RewardSettings(terms=("judge",)))(GOLD, **vars(PARIS.address), lat=1, lon=1)


@pytest.mark.parametrize("terms", [[], ["spatial", "spatial"], ["judge", "spatial"], ["nothing"]])
def test_terms_that_make_no_reward_are_refused(terms: list[str]) -> None:
    with pytest.raises(ValidationError, match="terms"):
        RewardSettings.model_validate({"terms": terms})


def test_geovista_without_the_hierarchy_pays_the_city_alone() -> None:
    """Table 4, w/o HR."""
    answers = ["Paris, Île-de-France, France", "Versailles, Île-de-France, France", "Lyon, France", "Berlin, Germany"]
    assert [worth("geovista", one) for one in answers] == [4, 2, 1, 0]
    assert [worth("geovista", one, hierarchical=False) for one in answers] == [1, 0, 0, 0]


# Every recipe

GOLD = json.dumps(
    {"lat": PARIS.lat, "lon": PARIS.lon, "city": "Paris", "province_or_state": "Île-de-France", "country": "France"}
)
OTHERS = st.one_of(
    st.text(max_size=60),
    st.builds("{}, {}".format, st.floats(-90, 90), st.floats(-180, 180)),
    st.sampled_from(["France; Rhône; Lyon", "France; Île-de-France; Paris", "Paris", "Spain", "Lyon, Rhône, France"]),
    st.builds("{}; {}; {}".format, *[st.sampled_from(["France", "Île-de-France", "Paris", "Rhône", "Xyz"])] * 3),
)


@pytest.mark.parametrize("recipe", rewarded_recipes())
@given(other=OTHERS)
def test_the_gold_answer_is_the_maximum(recipe: str, other: str) -> None:
    deps = RewardDeps(geocode=geocode, embed=embed)
    best = score(recipe, f"<answer>{GOLD}</answer>", PARIS, deps)
    rival = score(recipe, f"<answer>{other}</answer>", PARIS, deps)
    assert isinstance(best, Scored) and isinstance(rival, Scored)
    assert best.reward >= rival.reward - 1e-12
    assert best.reward >= {"geovista": 4, "geoagent": 2.5, "reverse": 0.6}.get(recipe, 1)


def broken(*_: object) -> None:
    raise ServiceError("geocoder", "outage", "connection refused", retryable=True)


def missing(*_: object) -> None:
    raise ServiceError("geocoder", "not_found", "no such place")


def test_an_outage_excludes_and_never_scores_zero() -> None:
    answer = "<answer>France; Rhône; Lyon</answer>"
    assert score("geoagent", answer, PARIS, RewardDeps(geocode=broken, embed=embed)) == Excluded("geocoder_outage")
    assert score("geovista", answer, PARIS, RewardDeps(verifier=broken)) == Excluded("geocoder_outage")  # type: ignore[arg-type]
    for recipe in rewarded_recipes():
        deps = RewardDeps(geocode=geocode, embed=embed)
        assert score(recipe, answer, PARIS, deps, tool_outage="search_outage") == Excluded("search_outage")
    found = score("geoagent", answer, PARIS, RewardDeps(geocode=missing, embed=embed))
    assert isinstance(found, Scored) and found.parts["spatial"] == 0  # a place that is not there is a wrong answer


def test_wrong_use_is_said() -> None:
    with pytest.raises(GeofixError, match=r"smilegeo.*geoagent, geovista, reverse, spotagent, spotmini"):
        score("smilegeo", "", PARIS)
    with pytest.raises(ValueError, match="geocode and an embed"):
        score("geoagent", "", PARIS)
    with pytest.raises(ValueError, match="not on Earth"):
        Truth(91, 0)


# Reward hacking, and the factory the trainer, Pass@K and verl call

CITIES = "Paris, London, Berlin, Tokyo, Delhi, Lagos, Lima, Sydney, Chicago, Cairo, Moscow, Madrid"
CONTINENTS = "48.85, 2.35; 1.3, 103.8; 40.7, -74.0; -33.9, 151.2; -22.9, -43.2; 6.5, 3.4"
PROMPT = 'Country: …\nCity: …\nLatitude: …\nLongitude: …\n{"lat": latitude, "lon": longitude, "city": city}'


@pytest.mark.parametrize("recipe", rewarded_recipes())
@pytest.mark.parametrize("hack", ["", CITIES, f"It is one of {CITIES}.", CONTINENTS, PROMPT, "word " * 10_000])
def test_reward_hacking_earns_nothing(recipe: str, hack: str) -> None:
    deps = RewardDeps(geocode=geocode, embed=embed)
    for text in (hack, f"<answer>{hack}</answer>", f"<answer>{GOLD}</answer><answer>{hack}</answer>"):
        found = score(recipe, text, PARIS, deps)
        assert isinstance(found, Scored) and found.reward == 0, (recipe, text[:80], found)


CALL = '{"name": "static_map_query", "arguments": {"center": [48.8566, 2.3522]}}'
FIELDS = '{"lat": 48.8566, "lon": 2.3522, "city": "Paris", "region": "Île-de-France", "country": "France"}'
UNEXECUTED = [
    *(
        CALL,
        f"```json\n{CALL}\n```",
        f"```tool_call\n{CALL}\n```",
        f"[{CALL}]",
        f"<tool_call>\n{CALL}\n</tool_call>",
        CALL[:-2],
    ),
    f'{{"name": "locate", "arguments": {FIELDS}}}',
    json.dumps({"name": "locate", "arguments": FIELDS}),
    f'{{"arguments": {FIELDS}, "name": "locate"}}',
    f"{{'name': 'locate', 'arguments': {FIELDS.replace(chr(34), chr(39))},}}",
    f'{{"type": "function", "function": {{"name": "locate", "parameters": {FIELDS}}}}}',
    f'{{"tool_calls": [{{"id": "1", "function": {{"name": "locate", "arguments": {FIELDS}}}}}]}}',
    f'{{"type": "tool_use", "name": "locate", "input": {FIELDS}}}',
    f'{{"action": "locate", "action_input": {FIELDS}}}',
    f'{{"thought": "Let me look.", "action": {{"name": "locate", "args": {FIELDS}}}}}',
    f'{{"tool": "static_map_query", "where": {FIELDS}}}',
    f'{{"static_map_query": {FIELDS}}}',
    f'{{"method": "tools/call", "params": {{"name": "locate", "arguments": {FIELDS}}}}}',
    f"<function=static_map_query>{FIELDS}</function>",
    "<function=static_map_query>\n<parameter=center>\n48.8566, 2.3522\n</parameter>\n</function>",
    "<function=static_map_query><parameter=center>Paris, France 48.8566, 2.3522",
    "<function_calls><invoke name='locate'><parameter name='at'>48.8566, 2.3522</parameter></invoke></function_calls>",
    "<static_map_query><center>48.8566, 2.3522</center></static_map_query>",
    f"Thought: I should look.\nAction: static_map_query\nAction Input: {FIELDS}",
    "Action: static_map_query\nAction Input: 48.8566, 2.3522",
    "**Action:** static_map_query\n**Action Input:** Paris, France; 48.8566, 2.3522\nObservation: 48.8566, 2.3522",
    "Action: static_map_query[48.8566, 2.3522]",
    f"Tool: static_map_query\nArguments: {FIELDS}",
    f"[TOOL_CALLS] [{CALL}]",
    f"[TOOL_CALLS]static_map_query[ARGS]{FIELDS}",
    "[TOOL_CALL] {tool => 'map', at => 'Paris, France 48.8566, 2.3522'}",
    f"<|python_tag|>{CALL}",
    "<|python_tag|>static_map_query.call(center=[48.8566, 2.3522])",
    f"<|tool_calls_section_begin|><|tool_call_begin|>functions.map:0<|tool_call_argument_begin|>{FIELDS}<|tool_call_end|>",
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>map\n```json\n{FIELDS}\n```<｜tool▁calls▁end｜>",
    f"<|channel|>commentary to=functions.map <|constrain|>json<|message|>{FIELDS}<|call|>",
    f"functools[{CALL}]",
    "```tool_code\nprint(locate('Paris, France', 48.8566, 2.3522))\n```",
    "static_map_query(center=[48.8566, 2.3522])",
    "default_api.locate(48.8566, 2.3522)",
    "maps_geocode('Paris, Île-de-France, France')",
]


@pytest.mark.parametrize("recipe", rewarded_recipes())
@pytest.mark.parametrize("call", UNEXECUTED)
def test_a_call_that_was_not_executed_is_not_an_answer_and_earns_nothing(recipe: str, call: str) -> None:
    row = {"lat": PARIS.lat, "lon": PARIS.lon, "country": "France", "region": "Île-de-France", "city": "Paris"}
    deps = RewardDeps(geocode=lambda address: (PARIS.lat, PARIS.lon), embed=embed)
    texts = [
        call,
        f"This could be Paris, France at 48.8566, 2.3522. Let me check.\n\n{call}",
        f"<answer>{call}</answer>",
    ]
    found = Reward(recipe, deps).many(texts, [row] * 3)
    assert [one.reward for one in found if isinstance(one, Scored)] == [0.0] * 3, (recipe, found)
    assert not any(isinstance(parse_answer(text), ParsedAnswer) for text in texts)


@pytest.mark.parametrize("recipe", ["spotagent", "thinking-with-map", "geovista"])
def test_the_trainer_and_verl_reward_no_call_and_still_reward_an_answer_beside_one(recipe: str) -> None:
    row = {"lat": PARIS.lat, "lon": PARIS.lon, "country": "France", "region": "Île-de-France", "city": "Paris"}
    texts = [CALL, f"<answer>{GOLD}</answer>\n{CALL}", f"{CALL}\n<answer>{GOLD}</answer>"]
    pairs = [(Episode(Completion([], []), True, text), row) for text in texts]
    judged = [one.reward for one in recipe_scorer(recipe)(pairs)]
    assert judged[0] == 0 and judged[1] == judged[2] == (4 if recipe == "geovista" else 1)
    assert [verl_hook.compute_score(recipe, text, row)["score"] for text in texts] == judged


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Eiffel Tower", "lat": 48.8566, "lon": 2.3522, "tool_calls": 3}',
        '{"lat": 48.8566, "lon": 2.3522, "tool_calls": [{"name": "map", "arguments": {"at": [1, 2]}}]}',
        "I used static_map_query (twice) and search_web. Final answer: 48.8566, 2.3522",
        "Thought: done.\nFinal Answer: 48.8566, 2.3522",
        "Action: static_map_query\nAction Input: {}\nObservation: 1.5, 2.5\nThought: so\nFinal Answer: 48.8566, 2.3522",
        "Input: a street. Action taken: none. Function: unclear. 48.8566, 2.3522",
        '{"type": "Feature", "name": "Paris", "geometry": {"type": "Point", "coordinates": [2.3522, 48.8566]}}',
    ],
)
def test_what_only_looks_like_a_call_is_read(text: str) -> None:
    answer = parse_answer(text)
    assert isinstance(answer, ParsedAnswer) and (answer.lat, answer.lon) == (48.8566, 2.3522)


ATHENS = Truth(37.98, 23.73, Address("Greece", "Attica", "Athens"))
MEXICO_CITY = Truth(19.43, -99.13, Address("Mexico", "Mexico City", "Mexico City"))
SEVILLE = Truth(37.39, -5.99, Address("Spain", "Andalusia", "Seville"))
CAPITAL = Truth(38.9, -77.04, Address("United States", "District of Columbia", "Washington"))
SEATTLE = Truth(47.61, -122.33, Address("United States", "Washington", "Seattle"))
BRUSSELS = Truth(50.85, 4.35, Address("Belgium", "Brussels Capital", "Brussels"))


@pytest.mark.parametrize(
    ("answer", "truth", "reward"),
    [
        ("Αθήνα", ATHENS, 4),
        ("Ελλάδα; Αττική; Αθήνα", ATHENS, 4),
        ("Athens, Greece", Truth(37.98, 23.73, Address("Ελλάδα", "Αττική", "Αθήνα")), 4),
        ("CDMX", MEXICO_CITY, 4),
        ("Mexico; CDMX; Coyoacán", Truth(19.43, -99.13, Address("México", "Ciudad de México", "Ciudad de México")), 2),
        ("A town in Andalucía", SEVILLE, 2),
        ("Spain; Andalucía; Sevilla", SEVILLE, 4),
        ("Sevilla, Andalucía, España", SEVILLE, 4),
        ("Washington, D.C.", CAPITAL, 4),
        ("Washington, D.C.", SEATTLE, 0),
        ("Washington, DC, USA", SEATTLE, 1),
        ("United States; Washington, D.C.; Washington", SEATTLE, 1),
        ("United States; District of Columbia; Washington", SEATTLE, 1),
        ("Washington State, USA", CAPITAL, 1),
        ("Seattle, Washington", SEATTLE, 4),
        ("not France, rather Belgium", PARIS, 0),
        ("not France, rather Belgium", BRUSSELS, 1),
        ("Belgium rather than France", PARIS, 0),
        ("This isn't France, it is Belgium", BRUSSELS, 1),
        ("Not in Paris but in Brussels", BRUSSELS, 4),
        ("I could not read the sign, but it is Paris", PARIS, 4),
        ("France or Belgium", PARIS, 0),
        # Several cities are not the first one.
        ("Paris. London. Berlin.", PARIS, 0),
        ("Paris\nLondon\nBerlin", PARIS, 0),
        ("Paris, Versailles or Rouen", PARIS, 0),
        ("Paris, Lyon, Marseille, France", PARIS, 1),
        ("Country: France\nCity: Paris, Lyon, Marseille", PARIS, 1),
        ("France; Île-de-France; Paris, Lyon, Nice", PARIS, 2),
        ('{"city": "Paris or Lyon", "country": "France"}', PARIS, 1),
        ("City: Los Angeles, San Francisco\nCountry: USA", LOS_ANGELES, 1),
        ("Los Angeles, San Francisco, San Diego, California", LOS_ANGELES, 2),
        # A place near it, or what it lies in, is no second city.
        ("Versailles, Paris", PARIS, 4),
        ("Country: United States\nCity: Los Angeles, California", LOS_ANGELES, 4),
        ("Paris, France. Its boulevards are wider than those of London.", PARIS, 4),
    ],
)
def test_names_in_other_languages_denied_ones_and_lists(answer: str, truth: Truth, reward: float) -> None:
    for text in (answer, f"<answer>{answer}</answer>"):
        found = geovista.score(text, truth)
        assert isinstance(found, Scored) and found.reward == reward, (text, found)


def test_names_both_ways_through_the_one_table() -> None:
    for said, name in [
        ("Republic of Ireland", "Ireland"),
        ("U.K.", "United Kingdom"),
        ("U.A.E.", "United Arab Emirates"),
        ("Deutschland", "Germany"),
        ("中国", "China"),
        ("Trinidad & Tobago", "Trinidad and Tobago"),
        ("Kyrgyz Republic", "Kyrgyzstan"),
    ]:
        for one, other in ((said, name), (name, said)):
            answer = ParsedAnswer(None, None, Address(one, None, None), one)
            assert levels_by_rule(answer, Address(other, None, None))["country"], (one, other)


@pytest.mark.parametrize("recipe", ["spotagent", "thinking-with-map", "geovista"])
def test_the_factory_and_verl_give_the_same_reward(recipe: str) -> None:
    row = {"lat": PARIS.lat, "lon": PARIS.lon, "country": "France", "region": "Île-de-France", "city": "Paris"}
    reward = reward_for(recipe)
    texts = [f"<answer>{GOLD}</answer>", "<answer>47.9, 2.3</answer>", "no idea"]
    found = reward.many(texts, [row] * 3)
    values = [one.reward for one in found if isinstance(one, Scored)]
    assert len(values) == 3 and values[0] == max(values) and values == sorted(values, reverse=True)
    assert reward(texts[0], **row) == found[0]
    assert reward(texts[0], **row, tool_outage="search_outage") == Excluded("search_outage")
    told = [verl_hook.compute_score(recipe, text, json.dumps(row)) for text in texts]
    assert [one["score"] for one in told] == values and not any(one["excluded"] for one in told)
    lost = verl_hook.compute_score(recipe, texts[0], row, {"tool_outage": "search_outage"})
    assert math.isnan(lost["score"]) and lost["excluded"]
    scores, groups = verl_hook.set_apart([*values, lost["score"]], ["a"] * 4)
    whole = group_advantages([*values, math.nan], ["a"] * 4).values
    np.testing.assert_allclose(group_advantages(scores, groups).values, whole)


def test_recipes_that_ask_services_say_so() -> None:
    with pytest.raises(GeofixError, match="give reward_for the connections"):
        reward_for("geoagent")
    with pytest.raises(GeofixError, match="has no reward to train with"):
        reward_for("smilegeo")
