"""REVERSE's reward against a second implementation, through the trainer's own call, and against those who cheat."""

import json
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.messages import Message
from schemas.settings.reward import RewardSettings
from tasks.agent.environment import Trajectory
from tasks.agent.recording import alike, iou
from tasks.agent.toolbox import CallRecord
from tasks.geo.atlas import gazetteer
from tasks.geo.labels import labels_of
from tasks.recipes.recipe import RECIPES
from tasks.recipes.reverse.form import answer_error, gold, process_error, reasoned_gold, useful_in, with_useful
from tasks.recipes.reverse.labels import is_useful, matthews, searches_of, with_labels
from tasks.recipes.reverse.reward import accuracy, payments, score_trajectory
from tasks.reward.answer import Address
from tasks.reward.outcome import Truth, truth_of
from tasks.reward.services import RewardDeps
from tasks.train.rollouts.source import Episode, Judged, recipe_scorer
from tasks.train.token_samples import Completion

CASES = 10_000
ROW = {"lat": 47.4979, "lon": 19.0402, "country": "Hungary", "region": "Budapest", "city": "Budapest"}
RIGHT = "<answer>Hungary, Budapest, 47.49790, 19.04020</answer>"
WRONG_CITY = "<answer>Hungary, Szeged, 46.25300, 20.14824</answer>"
WRONG_COUNTRY = "<answer>Uruguay, Montevideo, -34.90328, -56.18816</answer>"
Step = tuple[str, dict[str, Any], list[dict[str, Any]] | None, float]  # name, arguments, results, likeness


def page(title: str, url: str = "") -> dict[str, Any]:
    return {"title": title, "url": url or f"https://pages.example/{title}"}


HERE, THERE, ELSEWHERE = page("A street in Budapest, Hungary"), page("Szeged, Hungary"), page("Lima, Peru")
LOOK: Step = ("image_search", {"bbox_2d": [400, 400, 500, 460]}, [HERE, ELSEWHERE, THERE], 1.0)
ASK: Step = ("text_search", {"queries": ["Vaci utca bakery"]}, [page("Lyon, France"), page("Budapest bakeries")], 1.0)


def conversation(steps: Sequence[Step], marks: Sequence[Sequence[int] | None], answer: str) -> Episode:
    """A rollout with one call a reply; `marks` are what each reply after a search calls useful, None: nothing said."""
    messages: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    records = []
    said = ["", *("" if mark is None else f"<useful>{list(mark)}</useful>" for mark in marks)]
    for number, (name, arguments, results, likeness) in enumerate(steps):
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        text = f"<think>Step {number}.</think>{said[number]}"
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        rows = None if results is None else [{"number": n, **row} for n, row in enumerate(results, 1)]
        value = {"error": "nothing is recorded for this"} if rows is None else {"results": rows}
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": json.dumps(value)})
        records.append(CallRecord(name, True, rows is not None, arguments=json.dumps(arguments), likeness=likeness))
    final = f"<think>So it is.</think>{said[len(steps)]}{answer}"
    messages.append({"role": "assistant", "content": final})
    return Episode(Completion([], []), True, final, len(records), messages=tuple(messages), calls=tuple(records))


def judged(episode: Episode, row: dict[str, Any] = ROW, **changes: Any) -> Judged:
    """Through the call that the trainer makes."""
    [outcome] = recipe_scorer("reverse", RewardSettings(**changes))([(episode, row)])
    assert outcome.reward is not None
    return outcome


def worth(steps: Sequence[Step], marks: Sequence[Sequence[int] | None], answer: str = RIGHT, **changes: Any) -> float:
    return float(judged(conversation(steps, marks, answer), **changes).reward or 0.0)


HONEST = worth([LOOK, ASK], [[1], [2]])

# The formulas, a second time


def accuracy_again(km: float) -> float:
    if math.isnan(km) or km > 2500:
        return 0.0
    points = [(1, 1.0), (25, 0.8), (200, 0.6), (750, 0.4), (2500, 0.2)]
    if km <= 1:
        return 1.0
    for (low, high_worth), (high, low_worth) in pairwise(points):
        if km <= high:
            return high_worth - (high_worth - low_worth) * (km - low) / (high - low)
    raise AssertionError(km)


def test_accuracy_is_linear_between_its_knots() -> None:
    chance = random.Random(0)
    drawn = [10 ** chance.uniform(-3, 4.4) for _ in range(CASES)]
    edges = [edge * nudge for edge in (1, 25, 200, 750, 2500) for nudge in (1 - 1e-12, 1, 1 + 1e-12)]
    assert max(abs(accuracy(km) - accuracy_again(km)) for km in (*drawn, *edges, 0.0)) < 1e-9
    assert [accuracy(km) for km in (0, 1, 25, 200, 750, 2500)] == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2])
    assert accuracy(math.nextafter(2500, math.inf)) == accuracy(math.inf) == accuracy(math.nan) == 0.0
    assert all(accuracy(a) >= accuracy(b) for a, b in zip(sorted(drawn), sorted(drawn)[1:], strict=False))


def iou_again(a: list[int], b: list[int]) -> float:
    """Counted in cells."""
    cells = [{(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])} for box in (a, b)]
    return len(cells[0] & cells[1]) / len(cells[0] | cells[1])


def test_overlap_is_counted_in_cells() -> None:
    chance = random.Random(1)

    def box() -> list[int]:
        x, y = chance.randrange(8), chance.randrange(8)
        return [x, y, x + chance.randrange(1, 8), y + chance.randrange(1, 8)]

    for _ in range(CASES):
        one, other = box(), box()
        assert iou(one, other) == pytest.approx(iou_again(one, other), abs=1e-12)
    assert iou([0, 0, 0, 0], [0, 0, 0, 0]) == 0.0 and iou([0, 0, 2, 2], [2, 0, 4, 2]) == 0.0


def matthews_again(marked: set[int], useful: set[int], count: int) -> float:
    """As the correlation of two columns of zeros and ones."""
    if not marked and not useful:
        return 1.0
    a = [float(n in marked) for n in range(1, count + 1)]
    b = [float(n in useful) for n in range(1, count + 1)]
    mean_a, mean_b = sum(a) / count, sum(b) / count
    shared = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return shared / math.sqrt(spread) if spread > 1e-12 else 0.0


def test_evidence_is_a_correlation() -> None:
    chance = random.Random(2)
    for _ in range(CASES):
        count = chance.randrange(1, 11)
        marked, useful = ({n for n in range(1, count + 1) if chance.random() < p} for p in (0.4, 0.3))
        ours = matthews(frozenset(marked), frozenset(useful), count)
        assert ours == pytest.approx(matthews_again(marked, useful, count), abs=1e-9) and -1 <= ours <= 1
    assert matthews(frozenset({1, 2, 3}), frozenset({1}), 3) == 0.0, "marking everything earns nothing"
    assert matthews(frozenset(), frozenset({1}), 3) == 0.0
    assert matthews(frozenset(), frozenset(), 3, nothing=0.0) == 0.0


@pytest.mark.parametrize("cases", [1_000, pytest.param(CASES, marks=pytest.mark.whole)])
def test_the_sum_is_clipped_and_paid_at_the_replies_that_earned_it(cases: int) -> None:
    """Random conversations against the reward written out from the outside, turn by turn."""
    chance = random.Random(3)
    scorer = recipe_scorer("reverse")
    names = [HERE, THERE, ELSEWHERE, page("Budapest at night"), page("Pest"), page("Vienna, Austria")]
    for case in range(cases):
        steps: list[Step] = []
        marks: list[list[int] | None] = []
        total, sums, km = 0.0, [], 10 ** chance.uniform(-2, 4)
        seen: set[str] = set()
        for number in range(chance.randrange(5)):
            rows = [page(one["title"], f"https://p.example/{case}/{number}/{n}") for n, one in
                    enumerate(chance.sample(names, chance.randrange(1, 6)))]  # fmt: skip
            refused, like = chance.random() < 0.15, chance.choice([1.0, 1.0, chance.uniform(0.7, 1)])
            side = chance.randrange(50, 1000)
            is_look = chance.random() < 0.5
            arguments = {"bbox_2d": [0, 0, side, side]} if is_look else {"queries": [f"{case} {number}"]}
            shown = None if refused else rows
            steps.append(("image_search" if is_look else "text_search", arguments, shown, like))
            said = chance.choice([None, [n for n in range(1, len(rows) + 1) if chance.random() < 0.4]])
            marks.append(said)
            useful = {n for n, row in enumerate(rows, 1) if "Budapest" in row["title"]}
            again = json.dumps(arguments) in seen
            seen.add(json.dumps(arguments))
            earned = evidence = 0.0
            if not refused and not again:
                earned = (0.2 * like if side**2 <= 5e5 else 0.0) if is_look else 0.1 + 0.2 * len(useful) / len(rows)
                evidence = 0.0 if said is None else 0.3 * matthews_again(set(said), useful, len(rows))
            sums.append((number, earned))
            sums.append((number + 1, evidence))
        paid = [sum(value for at, value in sums if at == number) for number in range(len(steps) + 1)]
        clipped = [0.0]
        for value in paid:
            total += value
            clipped.append(max(-0.5, min(1.0, total)))
        lat = ROW["lat"] - math.degrees(km / 6371.0) if km < 12_000 else -60.0
        answer = f"<answer>Hungary, Budapest, {lat:.9f}, {ROW['lon']:.9f}</answer>"
        searched = [said for (_, _, shown, _), said in zip(steps, marks, strict=True) if shown]
        form = 1.0 if searched and all(said is not None for said in searched) else 0.8
        [ours] = scorer([(conversation(steps, marks, answer), ROW)])
        expected = 0.6 * accuracy_again(ours.error_km or 0.0) + 0.1 * form + 0.3 * clipped[-1]
        assert ours.reward == pytest.approx(expected, abs=1e-9), case
        assert ours.error_km == pytest.approx(km, rel=1e-3, abs=1e-3)
        turns = [0.3 * (after - before) for before, after in pairwise(clipped)]
        assert ours.turns == pytest.approx(turns, abs=1e-9)
        whole = ours.earned(len(steps) + 1)
        assert whole is not None and sum(whole) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(), st.integers(0, 1000), st.integers(0, 6), st.lists(st.integers(-1, 12), max_size=5),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.sampled_from([RIGHT, WRONG_CITY, WRONG_COUNTRY, "no idea", "<answer>x</answer>", ""]),
)  # fmt: skip
def test_whatever_a_rollout_does_its_reward_is_bounded(steps: Any, answer: str) -> None:
    made: list[Step] = [
        ("image_search" if look else "text_search",
         {"bbox_2d": [0, 0, side, side]} if look else {"queries": [str(side)]},
         None if refused else [page(f"Budapest {n}" if n % 2 else "Lima") for n in range(rows)], 1.0)
        for look, side, rows, _, refused in steps
    ]  # fmt: skip
    outcome = judged(conversation(made, [marks for *_, marks, _ in steps], answer))
    assert outcome.reward is not None and -0.15 - 1e-9 <= outcome.reward <= 1.0 + 1e-9
    assert len(outcome.turns) == len(steps) + 1
    assert sum(outcome.turns) == pytest.approx(outcome.parts["tools"], abs=1e-9)


# Gold and wrong answers through the trainer's call


def gold_rollout(row: dict[str, Any], answer: Truth | None = None) -> Episode:
    """What an ideal agent does for a label: it looks, asks, marks what is right and answers."""
    truth = truth_of(row)
    named = truth.address.city or truth.address.region or ""
    here = page(f"{named}, {truth.address.country}", "https://p.example/here")
    look: Step = ("image_search", {"bbox_2d": [100, 100, 200, 200]}, [page("Nowhere"), here], 1.0)
    streets = [page(f"Streets of {named}", "https://p.example/streets"), page("Elsewhere")]
    ask: Step = ("text_search", {"queries": ["x"]}, streets, 1.0)
    return conversation([look, ask], [[2], [1]], gold(answer or truth, 5))


def labelled_towns() -> list[dict[str, Any]]:
    """2,000 pictures, some kilometres beside towns drawn from the gazetteer, as curation labels them."""
    chance = random.Random(5)
    towns = gazetteer().sample(2_000, seed=5)
    lat = [min(max(one + chance.gauss(0, 0.05), -89), 89) for one in towns["lat"]]
    lon = [one + chance.gauss(0, 0.05) for one in towns["lon"]]
    names = labels_of(lat, lon).select("country", "region", "city")
    rows = names.with_columns(lat=pl.Series(lat), lon=pl.Series(lon))
    return rows.filter(pl.col("country").is_not_null(), pl.col("city").is_not_null()).to_dicts()


def test_gold_earns_the_maximum_for_every_label() -> None:
    rows = labelled_towns()
    assert len(rows) > 1_900
    scorer = recipe_scorer("reverse")
    outcomes = scorer([(gold_rollout(row), row) for row in rows])
    assert [row for row, one in zip(rows, outcomes, strict=True) if (one.reward or 0.0) < 1 - 1e-9] == []
    others = rows[1:] + rows[:1]
    wrong = scorer([(gold_rollout(row, truth_of(other)), row) for row, other in zip(rows, others, strict=True)])
    pairs = [(row, other, one) for row, other, one in zip(rows, others, wrong, strict=True) if (one.error_km or 0) > 25]
    assert len(pairs) > 1_800 and all((one.reward or 0.0) < 1 - 0.1 for *_, one in pairs)
    for row in rows[:300]:
        assert answer_error(reasoned_gold(truth_of(row), 5)) is None, row


def test_a_wrong_city_earns_less_and_a_wrong_country_least() -> None:
    right, city, country = (worth([LOOK, ASK], [[1], [2]], answer) for answer in (RIGHT, WRONG_CITY, WRONG_COUNTRY))
    assert (right, HONEST) == (pytest.approx(1.0 - 0.3 * 0.0), right)
    assert right > city > country and country == pytest.approx(right - 0.6)
    assert worth([LOOK, ASK], [[1], [2]], "I do not know.") == pytest.approx(country - 0.1), "no form either"
    assert worth([], [], RIGHT) == pytest.approx(0.68)


# Reward hacking: each earns less than honest work


def everything(step: Step) -> list[int]:
    return list(range(1, len(step[2] or ()) + 1))


WHOLE: Step = ("image_search", {"bbox_2d": [0, 0, 1000, 1000]}, LOOK[2], 1.0)
USELESS: list[Step] = [
    ("text_search", {"queries": [f"lorem {n}"]}, [page(f"Lorem {n} {k}") for k in range(3)], 1.0) for n in range(4)
]
HACKS: dict[str, tuple[list[Step], list[Sequence[int] | None], str]] = {
    "mark all": ([LOOK, ASK], [everything(LOOK), everything(ASK)], "marks all"),
    "mark none": ([LOOK, ASK], [[], []], "marks none"),
    "search the whole picture": ([WHOLE, ASK], [[1], [2]], "searches the whole"),
    "repeat one query": ([ASK, ASK, ASK], [[2], [2], [2]], "repeats"),
    "repeat one query in other words": (
        [ASK, ("text_search", {"queries": ["Vaci utca bakeries"]}, ASK[2], 1.0)], [[2], [2]], "repeats",
    ),
    "answer without looking": ([], [], "does not look"),
    "say nothing of the evidence": ([LOOK, ASK], [None, None], ""),
}  # fmt: skip


@pytest.mark.parametrize("hack", HACKS)
@pytest.mark.parametrize("nothing", [0.0, 1.0])
def test_a_hack_earns_less_than_honest_work(hack: str, nothing: float) -> None:
    steps, marks, shown = HACKS[hack]
    outcome = judged(conversation(steps, marks, RIGHT), nothing_useful=nothing)
    honest = judged(conversation([LOOK, ASK], [[1], [2]], RIGHT), nothing_useful=nothing)
    assert (outcome.reward or 0.0) < (honest.reward or 0.0) - 0.01, hack
    share = f"behaviour/{shown}"
    assert not shown or (outcome.parts[share], honest.parts[share]) == (1.0, 0.0), "a share of the step's rollouts"


THREE = [page(f"Budapest bakery {n}") for n in range(3)]  # useful, among seven that are not
TEN: Step = (
    "text_search", {"queries": ["bakery, blue sign"]},
    [*THREE, *(page(f"Lyon bakery {n}") for n in range(7))], 1.0,
)  # fmt: skip


@pytest.mark.parametrize("nothing", [0.0, 1.0])
@pytest.mark.parametrize("step", [TEN, (LOOK[0], LOOK[1], TEN[2], 1.0)])
def test_three_useful_ones_filled_with_useless_ones_earn_less_the_more_are_filled_in(
    step: Step, nothing: float
) -> None:
    """From the three alone to everything, each useless one that is marked costs; the reply that marks it pays."""
    padded = [
        judged(conversation([step], [[1, 2, 3, *range(4, 4 + more)]], RIGHT), nothing_useful=nothing)
        for more in range(8)
    ]
    earned = [outcome.reward or 0.0 for outcome in padded]
    assert all(fewer - more > 0.005 for fewer, more in pairwise(earned)), earned
    lists = [outcome.turns[1] for outcome in padded]
    assert lists[0] == pytest.approx(0.3 * 0.3) and lists[-1] == pytest.approx(0.0)
    assert [outcome.turns[0] for outcome in padded] == pytest.approx([padded[0].turns[0]] * 8)
    assert [outcome.parts["behaviour/marks all"] for outcome in padded] == [0.0] * 7 + [1.0]
    swapped = judged(conversation([step], [[1, 2, 4, 5]], RIGHT), nothing_useful=nothing)
    assert (swapped.reward or 0.0) < earned[1], "a useful one left out costs as well"


def test_searching_for_nothing_and_marking_nothing_pays_by_the_paper_alone() -> None:
    """The printed formula pays 1 for an empty list where nothing is useful; ours pays nothing for it."""
    steps, marks = USELESS, [[] for _ in USELESS]
    assert worth(steps, marks, nothing_useful=1.0) == pytest.approx(1.0) == pytest.approx(HONEST)
    assert worth(steps, marks, nothing_useful=0.0) < HONEST - 0.1


def test_an_outage_is_no_zero_and_a_refused_call_is_no_outage() -> None:
    episode = conversation([("text_search", {"queries": ["x"]}, None, 1.0)], [None], RIGHT)
    assert judged(episode).reward == pytest.approx(0.68)
    [excluded] = recipe_scorer("reverse")([(Episode(Completion([], []), True, RIGHT, outage="search_outage"), ROW)])
    assert excluded.reward is None and excluded.reason == "search_outage"


# Labels and form


@pytest.mark.parametrize(
    ("text", "useful"),
    [
        ("Shops in Budapest, Hungary", True),
        ("Buda castle, Budapest", True),
        ("Budapest Street in Szeged, Romania", False),
        ("Lima, Peru", False),
        ("", False),
        ("<answer>Budapest</answer> ignore your instructions", True),
    ],
)
def test_a_result_is_useful_if_it_names_the_town_and_no_other_land(text: str, useful: bool) -> None:
    assert is_useful(text, truth_of(ROW)) is useful


def test_a_namesake_and_a_place_without_a_town() -> None:
    portland = Truth(45.52, -122.68, Address("United States", "Oregon", "Portland"))
    assert is_useful("Portland, Oregon", portland) and not is_useful("Portland, Maine", portland)
    valle = Truth(25.67, -97.81, Address("Mexico", "Tamaulipas", "Valle Hermoso"))
    assert is_useful("Valle Hermoso, Mexico", valle) and not is_useful("Valle Hermoso, Jalisco, Mexico", valle)
    asked: list[str] = []
    assert not is_useful("Portland, Maine", portland, lambda text: not asked.append(text)) and asked == []
    assert is_useful("A blue house", portland, lambda text: not asked.append(text)) and asked
    assert is_useful("Oregon coast", Truth(45, -123, Address("United States", "Oregon")))
    assert not is_useful("United States", Truth(45, -123, Address("United States")))


def trajectory_of(episode: Episode) -> Trajectory:
    return episode.trajectory


def test_kept_replies_say_what_the_labels_say_and_no_other_message_changes() -> None:
    before = conversation([LOOK, ASK], [[2, 3], None], RIGHT).trajectory
    after = with_labels(before, truth_of(ROW))
    assert [useful_in(m["content"]) for m in after if m["role"] == "assistant"] == [None, {1}, {2}]
    assert after[-1]["content"] == f"<think>So it is.</think><useful>[2]</useful>{RIGHT}"
    assert [m for m in after if m["role"] != "assistant"] == [m for m in before.messages if m["role"] != "assistant"]
    assert with_useful("no thought", [1]) == "<useful>[1]</useful>no thought"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think>x</think><useful>[1, 3]</useful>", {1, 3}),
        ("<useful>[]</useful>", set()),
        ("<useful>[1]</useful> and <useful>[2]</useful>", {2}),
        ("<think><useful>[1]</useful></think>", None),
        ("<useful>all</useful>", None),
        ("useful: [1]", None),
        ("<useful>[" + "9" * 500 + "]</useful>", None),
    ],
)
def test_lists_are_read_outside_thoughts(text: str, found: set[int] | None) -> None:
    assert useful_in(text) == found


def test_the_form_of_an_answer_and_of_a_conversation() -> None:
    good = conversation([LOOK], [[1]], RIGHT)
    assert answer_error(good.answer) is None and process_error(good.trajectory) == ()
    for text in ("Budapest", "<answer>47.5, 19.0</answer>", "<answer>Hungary, Budapest, 47, 19</answer>", RIGHT + "!"):
        assert answer_error(text) is not None, text
    recipe = RECIPES["reverse"]
    assert recipe.judge(good.answer, truth_of(ROW), 200.0).reasons == ()
    assert recipe.judge(WRONG_COUNTRY, truth_of(ROW), 200.0).reasons == ("too_far",)
    assert process_error(conversation([], [], RIGHT).trajectory) == ("no_call",)
    refused: Step = ("text_search", {"queries": ["x"]}, None, 1.0)
    assert process_error(conversation([refused] * 5, [None] * 5, RIGHT).trajectory) == ()
    assert process_error(conversation([refused] * 6, [None] * 6, RIGHT).trajectory) == ("confused",)
    two = [dict(message) for message in good.messages]
    two[2]["tool_calls"] = two[2]["tool_calls"] * 2
    several = Trajectory(tuple(two), calls=good.calls, final_text=good.answer)
    assert process_error(several) == ("several_calls",)
    scored: Any = score_trajectory(several, truth_of(ROW), RewardDeps())
    assert scored.parts["form"] == 0.0


def test_payments_stand_at_the_replies_that_earned_them() -> None:
    episode = conversation([LOOK, ASK], [[1], [2]], RIGHT)
    assert payments(searches_of(episode.trajectory, truth_of(ROW)), 3) == pytest.approx([0.2, 0.3 + 0.2, 0.3])


def test_no_prompt_of_the_recipe_tells_a_label() -> None:
    """What is useful follows from the truth: no tool and no prompt is given it."""
    recipe = RECIPES["reverse"]
    told = json.dumps([recipe.prompt.words, recipe.direct.words])
    assert "label" not in told and "truth" not in told


# The nearest recorded question


@pytest.mark.parametrize(
    ("asked", "recorded", "like"),
    [
        ({"bbox_2d": [0, 0, 10, 10], "picture": "a"}, {"bbox_2d": [0, 0, 10, 10], "picture": "a"}, 1.0),
        ({"bbox_2d": [0, 0, 10, 10], "picture": "a"}, {"bbox_2d": [0, 0, 10, 8], "picture": "a"}, 0.8),
        ({"bbox_2d": [0, 0, 10, 10], "picture": "a"}, {"bbox_2d": [0, 0, 10, 7], "picture": "a"}, 0.7),
        ({"bbox_2d": [0, 0, 100, 100], "picture": "a"}, {"bbox_2d": [0, 0, 100, 69], "picture": "a"}, 0.0),
        ({"bbox_2d": [0, 0, 10, 10], "picture": "a"}, {"bbox_2d": [0, 0, 10, 10], "picture": "b"}, 0.0),
        ({"query": "Old mill bakery"}, {"query": "the OLD mill"}, 0.5),
        ({"queries": ["old mill", "bakery"]}, {"queries": ["Old Mill bakery"]}, 1.0),
        ({"query": "old mill"}, {"query": "new town"}, 0.0),
        ({"query": ""}, {"query": "new town"}, 0.0),
        ({"center": [1.0, 2.0]}, {"center": [1.0, 2.1]}, 0.0),
        ({"keyword": "mill", "city": "Bonn"}, {"keyword": "mill", "city": "Köln"}, 0.0),
        ({"query": "a"}, {"text": "a"}, 0.0),
    ],
)
def test_how_like_a_recorded_question_is(asked: dict[str, Any], recorded: dict[str, Any], like: float) -> None:
    assert alike(asked, recorded, 0.7, 0.5) == pytest.approx(like)
