"""Rejection sampling: each rule alone, all of them together, and the gold trajectory."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.react import CallRecord, Trajectory
from tasks.geo.distance import EARTH_RADIUS_KM, distance_km
from tasks.synthesize.rejection import Point, verdict

SETTINGS = SynthesizeSettings()
TRUTH = Point(48.8566, 2.3522)
GOOD = CallRecord("search_web", True, True)
FAILED = CallRecord("search_web", True, False, "nothing there")
MALFORMED = CallRecord("search_web", False, False, "not JSON")


def answer(lat=TRUTH.lat, lon=TRUTH.lon, country="France", city="Paris") -> str:
    return f"<think>…</think><answer>Country: {country}\nCity: {city}\nLatitude: {lat}\nLongitude: {lon}</answer>"


def judge(final_text=None, calls=(GOOD,), over_budget=False, truth=TRUTH):
    return verdict(
        Trajectory((), tuple(calls), answer() if final_text is None else final_text, over_budget), truth, SETTINGS
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
        (judge(calls=[GOOD] * 7), ("too_many_calls",)),
        (judge("", over_budget=True), ("too_many_calls", "no_answer")),
        (judge(""), ("no_answer",)),
        (judge("I do not know."), ("no_answer",)),
        (judge("<answer></answer>"), ("no_answer",)),
        (judge(answer(lat="unknown")), ("unparsable_answer",)),
        (judge(answer(lat=91)), ("unparsable_answer",)),
        (judge(answer(lon="NaN")), ("unparsable_answer",)),
        (judge("<answer>France; Île-de-France; Paris</answer>"), ("missing_field",)),
        (judge('<answer>{"lat": 48.8566, "lon": 2.3522, "country": "France"}</answer>'), ("missing_field",)),
        (judge('<answer>{"lat": 48.8566, "lon": 2.3522, "city": "Paris"}</answer>'), ("missing_field",)),
        (judge(answer(lat=0, lon=0)), ("too_far",)),
        (judge("<answer>0, 0</answer>", [MALFORMED]), ("malformed_call", "missing_field", "too_far")),
    ],
)
def test_every_reason_that_applies_is_given(judged, reasons):
    assert not judged.kept and judged.reasons == reasons


def test_six_calls_are_allowed_and_none_is_fine():
    assert judge(calls=[GOOD] * 6).kept and judge(calls=[]).kept


@given(st.floats(0, 40), st.floats(-60, 60), st.floats(-170, 170))
def test_kept_iff_strictly_nearer_than_five_km(north_km, lat, lon):
    guess_lat = lat + math.degrees(north_km / EARTH_RADIUS_KM)
    judged = judge(answer(lat=guess_lat, lon=lon), truth=Point(lat, lon))
    if abs(north_km - 5) > 1e-3:  # the answer is text; its last digit is not what is tested
        assert judged.kept == (north_km < 5)
    assert judged.error_km is not None
    assert judged.kept == (judged.error_km < SETTINGS.max_error_km)


@given(st.lists(st.sampled_from([GOOD, FAILED, MALFORMED]), max_size=9), st.booleans(), st.floats(0, 10))
def test_kept_iff_all_rules_hold(calls, over_budget, north_km):
    final = answer(lat=TRUTH.lat + math.degrees(north_km / EARTH_RADIUS_KM))
    judged = judge(final, calls, over_budget)
    near = distance_km(judged.lat, judged.lon, TRUTH.lat, TRUTH.lon) < 5
    assert judged.kept == (all(c.succeeded for c in calls) and len(calls) <= 6 and not over_budget and near)
    assert ("malformed_call" in judged.reasons) == (MALFORMED in calls)
    assert ("tool_failed" in judged.reasons) == (FAILED in calls)
    assert len(set(judged.reasons)) == len(judged.reasons)


@given(st.text(max_size=300))
def test_no_text_is_ever_kept_without_a_point(text):
    judged = judge(text)
    assert judged.kept <= (judged.error_km is not None)


def test_an_error_that_is_no_number_is_not_kept():
    assert "too_far" in judge(truth=Point(math.nan, 0.0)).reasons
