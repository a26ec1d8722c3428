"""Rejection sampling: each rule alone, all of them together, and the gold trajectory."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.environment import Trajectory
from tasks.agent.toolbox import CallRecord
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.recipes.recipe import RECIPES
from tasks.reward.answer import Address
from tasks.synthesize.rejection import Truth, judge_trajectory

SETTINGS = SynthesizeSettings(require=())  # the papers' own rejection sampling
TRUTH = Truth(48.8566, 2.3522, Address("France", "Île-de-France", "Paris"))
GOLD_JSON = '<answer>{"lat": 48.8566, "lon": 2.3522, "city": "Paris", "country": "France"}</answer>'
LEVEL = {"Clues": ["a tower"], "Reasoning": "It is known.", "Conclusion": "France", "Uncertainty": "Low"}
CHAIN = dict.fromkeys(("CountryIdentification", "RegionalGuess", "PreciseLocalization"), LEVEL)
LEVELS = json.dumps({"ChainOfThought": CHAIN, "FinalAnswer": "France; Île-de-France; Paris"}, ensure_ascii=False)
GOOD = CallRecord("search_web", True, True)
FAILED = CallRecord("search_web", True, False, "nothing there")
MALFORMED = CallRecord("search_web", False, False, "not JSON")


def answer(lat=TRUTH.lat, lon=TRUTH.lon, country="France", city="Paris") -> str:
    return f"<think>…</think><answer>Country: {country}\nCity: {city}\nLatitude: {lat}\nLongitude: {lon}</answer>"


def judge(
    final_text=None, calls=(GOOD,), over_budget=False, truth=TRUTH, recipe="spotagent", settings=SETTINGS, messages=()
):
    text = answer() if final_text is None else final_text
    messages = messages or [{"role": "assistant", "content": text}]
    ended = "call_budget" if over_budget else "answered"
    return judge_trajectory(
        Trajectory(tuple(messages), (), tuple(calls), text, ended), RECIPES[recipe], truth, settings
    )


def test_the_gold_trajectory_is_kept():
    judged = judge()
    assert judged.kept and judged.reasons == () and judged.error_km == 0
    assert (judged.lat, judged.lon) == (TRUTH.lat, TRUTH.lon)


@pytest.mark.parametrize(
    ("judged", "reasons"),
    [
        (judge(calls=[GOOD, MALFORMED]), ("malformed_call",)),
        (judge(calls=[FAILED, GOOD]), ("tool_failed",)),
        (judge(calls=[MALFORMED, FAILED]), ("malformed_call", "tool_failed")),
        (judge("", over_budget=True), ("too_many_calls", "no_answer")),
        (judge(""), ("no_answer",)),
        (judge("I do not know."), ("no_answer",)),
        (judge("<answer></answer>"), ("no_answer",)),
        (judge(answer(lat="unknown")), ("unparsable_answer",)),
        (judge(answer(lat=91)), ("unparsable_answer",)),
        (judge(answer(lon="NaN")), ("unparsable_answer",)),
        (judge("<answer>France; Île-de-France; Paris</answer>"), ("wrong_form", "missing_field")),
        (
            judge('<answer>{"lat": 48.8566, "lon": 2.3522, "country": "France"}</answer>'),
            ("wrong_form", "missing_field"),
        ),
        (judge(GOLD_JSON), ("wrong_form",)),
        (judge(answer() + " Good luck!"), ("wrong_form",)),
        (judge(GOLD_JSON.replace("lat", "latitude"), recipe="thinking-with-map"), ("wrong_form",)),
        (judge("<answer>Country: France</answer>", recipe="geoagent"), ("wrong_form",)),
        (judge(LEVELS.replace("France", "Chile"), recipe="geoagent"), ("wrong_country",)),
        (judge(LEVELS.replace("Île-de-France", "Brittany"), recipe="geoagent"), ("wrong_region",)),
        (judge(LEVELS.replace("; Paris", "; Rue Basse, Lyon"), recipe="geoagent"), ("wrong_place",)),
        (
            judge(LEVELS.replace('"Conclusion": "France"', '"Conclusion": "Belgium"'), recipe="geoagent"),
            ("contradicted",),
        ),
        (judge("", recipe="geoagent"), ("no_answer",)),
        (judge(answer(lat=0, lon=0)), ("too_far",)),
        (judge("<answer>0, 0</answer>", [MALFORMED]), ("malformed_call", "wrong_form", "missing_field", "too_far")),
    ],
)
def test_every_reason_that_applies_is_given(judged, reasons):
    assert not judged.kept and judged.reasons == reasons


def test_six_calls_are_allowed_and_none_is_fine():
    assert judge(calls=[GOOD] * 6).kept and judge(calls=[]).kept


def test_each_recipe_keeps_its_own_form():
    assert judge(GOLD_JSON, recipe="thinking-with-map").kept
    assert judge(LEVELS, recipe="geoagent").kept
    for place in ("12 Rue X, Paris", "Versailles", "Montmartre", "near the river"):
        assert judge(LEVELS.replace("; Paris", f"; {place}"), recipe="geoagent").kept
    assert judge(LEVELS.replace("Île-de-France", "northern France"), recipe="geoagent").kept
    lines = "Country: Chile\nState: Maule\nCity: Talca\nAddress: Plaza de Armas, Talca, Chile"
    assert judge(f"<answer>\n{lines}\n</answer>", recipe="geovista").kept  # no filter by the answer
    assert judge(answer(), recipe="geovista").reasons == ("wrong_form",), "no state, no address"


def conversation(*assistant, tool='{"results": [{"lat": 48.85661, "lon": 2.35222}]}', question="Where?"):
    """A question with a picture, then the assistant's messages with a tool's text between them."""
    picture = {"type": "image_url", "image_url": {"url": f"sha256:{'0' * 64}.jpg"}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": question}]}]
    for number, text in enumerate(assistant):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "search_web", "arguments": "{}"}}
        last = number == len(assistant) - 1
        messages.append({"role": "assistant", "content": text} | ({} if last else {"tool_calls": [call]}))
        if not last:
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": tool})
    return messages


GIVEN = answer(lat=48.8566, lon=2.3522)


@pytest.mark.parametrize(
    ("rule", "messages", "reasons"),
    [
        ("visible_signs", conversation('<think>I read "Rue X".</think>', '<think>On "Rue X".</think>' + GIVEN), ()),
        ("visible_signs", conversation("<think>a</think>", '<think>On "Rue X".</think>' + GIVEN), ("unseen_sign",)),
        ("visible_signs", conversation("<think>a</think>", "<think>It's the town's.</think>" + GIVEN), ()),
        ("given_coordinates", conversation("<think>a</think>", GIVEN), ()),
        ("given_coordinates", conversation("<think>48.8566</think>", GIVEN), ("unfounded_coordinate",)),
        ("given_coordinates", conversation("<think>a</think>", GIVEN, tool="{}"), ("unfounded_coordinate",)),
        ("unnamed_answer", conversation("<think>a</think>", GIVEN), ()),
        ("unnamed_answer", conversation(GIVEN, question="Where in Paris is it?"), ("answer_in_question",)),
    ],
)
def test_rules_beyond_the_paper_are_reasons_of_their_own(rule, messages, reasons):
    on = SynthesizeSettings(require=(rule,))
    assert judge(messages[-1]["content"], settings=on, messages=messages).reasons == reasons
    assert judge(messages[-1]["content"], messages=messages).kept


@given(st.floats(0, 40), st.floats(-60, 60), st.floats(-170, 170))
def test_kept_iff_strictly_nearer_than_five_km(north_km, lat, lon):
    guess_lat = lat + math.degrees(north_km / EARTH_RADIUS_KM)
    judged = judge(answer(lat=f"{guess_lat:.9f}", lon=f"{lon:.9f}"), truth=Truth(lat, lon))
    if abs(north_km - 5) > 1e-3:  # the answer is text; its last digit is not what is tested
        assert judged.kept == (north_km < 5)
    assert judged.error_km is not None
    assert judged.kept == (judged.error_km < SETTINGS.max_error_km)


@given(st.lists(st.sampled_from([GOOD, FAILED, MALFORMED]), max_size=9), st.booleans(), st.floats(0, 10))
def test_kept_iff_all_rules_hold(calls, over_budget, north_km):
    final = answer(lat=TRUTH.lat + math.degrees(north_km / EARTH_RADIUS_KM))
    judged = judge(final, calls, over_budget)
    near = distance_km(judged.lat, judged.lon, TRUTH.lat, TRUTH.lon) < 5
    assert judged.kept == (all(c.succeeded for c in calls) and not over_budget and near)
    assert ("malformed_call" in judged.reasons) == (MALFORMED in calls)
    assert ("tool_failed" in judged.reasons) == (FAILED in calls)
    assert len(set(judged.reasons)) == len(judged.reasons)


@given(st.text(max_size=300))
def test_no_text_is_ever_kept_without_a_point(text):
    judged = judge(text)
    assert judged.kept <= (judged.error_km is not None)


def test_a_truth_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not on Earth"):
        judge(truth=Truth(math.nan, 0.0))
