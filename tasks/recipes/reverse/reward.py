"""REVERSE's reward: 0.6 accuracy + 0.1 form + 0.3 tools, the tools' part paid at the reply that earned it."""

from itertools import accumulate, pairwise

import numpy as np

from schemas.settings.reward import RewardSettings
from tasks.agent.environment import Trajectory
from tasks.agent.tagged import split_thought
from tasks.recipes.recipe import RecipeReward
from tasks.recipes.reverse.form import answer_error, replies_of
from tasks.recipes.reverse.labels import Search, Verifier, matthews, searches_of
from tasks.reward.outcome import BEHAVIOUR, Excluded, Scored, Truth, excluded_by, point_error
from tasks.reward.services import VERIFIER, RewardDeps
from tasks.services.errors import ServiceError

ACCURACY, FORM, TOOLS = 0.6, 0.1, 0.3
KNOTS_KM = (1.0, 25.0, 200.0, 750.0, 2500.0)
KNOTS = (1.0, 0.8, 0.6, 0.4, 0.2)
WITHOUT_LIST = 0.8  # of the form, where no list says what was useful
LOOK, ASKED, FOUND, EVIDENCE = 0.2, 0.1, 0.2, 0.3  # where to look, what to ask, what to trust
LEAST, MOST = -0.5, 1.0  # of all calls together
WHOLE = 0.5  # a box over more of the picture than this is no look at anything


def accuracy(error_km: float) -> float:
    """Linear between the knots, 1 below the first and 0 beyond the last, where it jumps."""
    return float(np.interp(error_km, KNOTS_KM, KNOTS)) if error_km <= KNOTS_KM[-1] else 0.0  # NaN fails too


def form(replies: list[str], searches: list[Search], one_call: bool = True) -> float:
    """0 without a thought in every reply or without the answer's line; 1 with a list after every search, else 0.8."""
    if not replies or not one_call or answer_error(replies[-1]) or not all(split_thought(text)[0] for text in replies):
        return 0.0
    shown = [search for search in searches if search.rows]
    return 1.0 if shown and all(search.marked is not None for search in shown) else WITHOUT_LIST


def area(box: list[float]) -> float:
    """The share of the picture under a box in thousandths."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]) / 1e6


def payments(searches: list[Search], replies: int, nothing: float = 1.0) -> list[float]:
    """What each reply earns by its search, and by the list that it writes of the one before.

    A search that shows nothing, or nothing that was not shown before, earns nothing.
    """
    paid = [0.0] * replies
    for search in searches:
        if not search.rows or search.is_repeated:
            continue
        if search.name == "image_search":
            is_look = search.box is not None and area(search.box) <= WHOLE
            paid[search.reply] += LOOK * search.likeness * is_look
        else:
            paid[search.reply] += ASKED + FOUND * len(search.useful) / len(search.rows)
        if search.marked is not None:
            paid[search.reply + 1] += EVIDENCE * matthews(search.marked, search.useful, len(search.rows), nothing)
    return paid


def behaviours(searches: list[Search], has_calls: bool) -> dict[str, float]:
    """Ways to be paid without the work, 1 where a rollout shows one: their mean is its share of a step's rollouts."""
    judged = [search for search in searches if search.rows and search.marked is not None]
    every = [frozenset(row["number"] for row in search.rows or ()) for search in judged]
    pairs = list(zip(judged, every, strict=True))
    return {
        "marks all": float(any(search.marked == rows != search.useful for search, rows in pairs)),
        "marks none": float(any(search.useful and not search.marked for search in judged)),
        "searches the whole": float(any(search.box is not None and area(search.box) > WHOLE for search in searches)),
        "repeats": float(any(search.is_repeated for search in searches)),
        "does not look": float(not has_calls),
    }


def score(text: str | None, truth: Truth) -> Scored:
    """The reward of an answer alone, as SFT, Pass@K and evaluation without tools see it."""
    point = point_error(text, truth.lat, truth.lon)
    near = 0.0 if point.error_km is None else accuracy(point.error_km)
    parts = {"accuracy": ACCURACY * near, "form": FORM * form([text or ""], [])}
    return Scored(sum(parts.values()), point.parse_error, point.error_km, parts)


def score_trajectory(trajectory: Trajectory, truth: Truth, deps: RewardDeps) -> Scored | Excluded:
    """The reward of a conversation with tools."""
    place = truth.address.city or truth.address.region or ""
    ask = deps.verifier
    verifier: Verifier | None = None if ask is None else lambda text: ask("city", text, place)
    try:
        searches = searches_of(trajectory, truth, verifier)
    except ServiceError as error:
        return excluded_by(error)
    replies = replies_of(trajectory.messages)
    one_call = all(len(message.get("tool_calls") or ()) <= 1 for message in trajectory.messages)
    paid = payments(searches, len(replies), deps.settings.nothing_useful)
    sums = [min(MOST, max(LEAST, total)) for total in accumulate(paid, initial=0.0)]
    turns = tuple(TOOLS * (after - before) for before, after in pairwise(sums))
    answer = score(trajectory.final_text, truth)
    parts = {
        "accuracy": answer.parts["accuracy"],
        "form": FORM * form(replies, searches, one_call and bool(trajectory.final_text)),
        "tools": TOOLS * sums[-1],
    }
    shares = behaviours(searches, bool(trajectory.calls))
    shown = parts | {f"{BEHAVIOUR}{name}": share for name, share in shares.items()}
    return Scored(sum(parts.values()), answer.reason, answer.error_km, shown, turns)


def _roles(settings: RewardSettings) -> tuple[str, ...]:
    return (settings.verifier,) if settings.verifier is not None else ()


REWARD = RecipeReward(
    lambda text, truth, deps: score(text, truth),
    asks=lambda settings: ("chat",) if _roles(settings) else (),
    roles=_roles,
    words=lambda settings: (VERIFIER,) if _roles(settings) else (),
    of_trajectory=score_trajectory,
)
