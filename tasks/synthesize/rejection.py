"""Rejection sampling (SpotAgent 3.2.1): which trajectories are worth learning from, and why the others are not."""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.messages import Message, texts_of
from schemas.settings.synthesize import Rule, SynthesizeSettings
from tasks.agent.claims import contradictions, unseen_signs
from tasks.agent.environment import ANSWERED, CALL_BUDGET, Trajectory
from tasks.agent.render import training_messages
from tasks.agent.tagged import NotTaggable
from tasks.geo.distance import EARTH_RADIUS_KM
from tasks.geo.labels import country_codes_of
from tasks.geo.named_places import nearest_named_km
from tasks.geo.names import country_code
from tasks.recipes.recipe import Judged, Recipe
from tasks.reward.answer import ParsedAnswer, parse_answer
from tasks.reward.outcome import Truth

BORDER_KM = 20.0  # borders are simplified, and a town may lie across one
TOWN_KM = 50.0  # from the place of its name on, an answer's point is another place's
_COORDINATE = re.compile(r"(?<![\w.])-?\d{1,3}\.(\d{3,})(?![\w.])")


def unfounded_coordinates(trajectory: Trajectory) -> list[str]:
    """Coordinates in thoughts, calls and the answer that no tool had given by then, to the decimals written."""
    known_values: list[float] = []
    unfounded: list[str] = []
    for message in trajectory.messages:
        numbers = [match for text in (*texts_of(message), *_arguments(message)) for match in _COORDINATE.finditer(text)]
        if message["role"] != "assistant":
            known_values += [float(match.group()) for match in numbers] if message["role"] == "tool" else []
            continue
        for match in numbers:
            half = 0.5 * 10.0 ** -len(match.group(1)) * 1.001
            if not any(abs(float(match.group()) - value) <= half for value in known_values):
                unfounded.append(match.group())
    return unfounded


def misplaced_answer(trajectory: Trajectory) -> list[str]:
    """The answer's point where it is far from every place of the town, or outside the country, that the answer names.

    For recipes whose tools give no coordinates: a point then comes from the model's own knowledge of the map.
    """
    answer = parse_answer(trajectory.final_text)
    code = country_code(answer.address.country or "")
    if code is None or not isinstance(answer, ParsedAnswer) or answer.lat is None or answer.lon is None:
        return []
    lat, lon = answer.lat, answer.lon
    away_km = nearest_named_km(answer.address.city, code, lat, lon) if answer.address.city else None
    if away_km is not None:
        return [f"{lat}, {lon} is {away_km:.0f} km from {answer.address.city}"] if away_km > TOWN_KM else []
    north = math.degrees(BORDER_KM / EARTH_RADIUS_KM)
    east = north / max(0.1, math.cos(math.radians(lat)))
    steps = [(up, right) for up in (0, -1, 1) for right in (0, -1, 1)]
    lats = [max(-90.0, min(90.0, lat + up * north)) for up, _ in steps]
    lons = [(lon + right * east + 180) % 360 - 180 for _, right in steps]
    is_there = code in set(country_codes_of(lats, lons))
    return [] if is_there else [f"{lat}, {lon} is not in {answer.address.country}"]


def named_in_question(trajectory: Trajectory, names: Sequence[str | None]) -> list[str]:
    """Names of the answer that the system prompt or the question holds already."""
    questions = " ".join(
        fold(text)
        for message in trajectory.messages
        if message["role"] in ("system", "user")
        for text in texts_of(message)
    )
    return [name for name in names if name and re.search(rf"\b{re.escape(fold(name))}\b", questions)]


def fold(text: str) -> str:
    """Letters without accents and case, blanks as one: the same sign is written in several ways."""
    parts = unicodedata.normalize("NFKD", text.casefold().replace("ı", "i"))
    return " ".join("".join(char for char in parts if not unicodedata.combining(char)).split())


def _arguments(message: Message) -> list[str]:
    return [call["function"]["arguments"] for call in message.get("tool_calls") or []]


@dataclass(frozen=True)
class Verdict(Judged):
    """Whether a trajectory is kept; if not, every reason that applies, in a fixed order, with what was found."""

    evidence: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        return not self.reasons


def rules_of(recipe: Recipe, settings: SynthesizeSettings) -> tuple[Rule, ...]:
    """The rules beyond a paper's own that a recipe's trajectories are held to: its own, or those of the settings."""
    return recipe.rules if settings.require is None else settings.require


def judge_trajectory(
    trajectory: Trajectory,
    recipe: Recipe,
    truth: Truth,
    settings: SynthesizeSettings,
    readings: Sequence[str] | None = None,
) -> Verdict:
    """Kept iff every call was well-formed and answered, and the answer has the prompt's form and is near the truth.

    The recipe judges its answer; `max_error_km` is how near a point has to be. Further rules are those of `rules_of`;
    `readings` is what was read in each picture by another model (`tasks.agent.readings`), None where none was queried.
    """
    reasons = _process_reasons(trajectory, recipe.process_error)
    judged = recipe.judge(trajectory.final_text, truth, settings.max_error_km)
    reasons += [reason for reason in judged.reasons if reason not in reasons]
    evidence: list[str] = []
    required = rules_of(recipe, settings)
    for rule, (reason, offending_in) in _RULES.items():
        if rule in required and (offending := offending_in(trajectory, truth, readings)):
            reasons += [reason] if reason not in reasons else []
            evidence += [f"{reason}: {offence}" for offence in offending[:5]]
    return Verdict(tuple(reasons), judged.answer, judged.lat, judged.lon, judged.error_km, tuple(evidence))


def _calls_error(trajectory: Trajectory) -> tuple[str, ...]:
    """What is wrong with calls that all have to be well formed and answered."""
    malformed = any(not call.well_formed for call in trajectory.calls)
    failed = any(call.well_formed and not call.succeeded for call in trajectory.calls)
    return (*(("malformed_call",) if malformed else ()), *(("tool_failed",) if failed else ()))


def _process_reasons(trajectory: Trajectory, own: Callable[[Trajectory], tuple[str, ...]] | None) -> list[str]:
    """What is wrong with how it went, its calls by the recipe's own rule where it has one."""
    reasons = list((own or _calls_error)(trajectory))
    if trajectory.end_reason == CALL_BUDGET:
        reasons.append("too_many_calls")
    elif trajectory.end_reason != ANSWERED:
        reasons.append(trajectory.end_reason)
    try:
        training_messages(trajectory.messages, trajectory.tools)
    except NotTaggable:
        reasons.append("foreign_markup")
    return reasons


def _named(trajectory: Trajectory) -> list[str]:
    answer = parse_answer(trajectory.final_text)
    return named_in_question(trajectory, (answer.address.country, answer.address.city))


_Check = Callable[[Trajectory, Truth, Sequence[str] | None], list[str]]
_RULES: dict[Rule, tuple[str, _Check]] = {
    "visible_signs": ("unseen_sign", lambda trajectory, _, readings: unseen_signs(trajectory, readings)),
    "true_statements": ("contradicted", lambda trajectory, truth, _: contradictions(trajectory, truth)),
    "given_coordinates": ("unfounded_coordinate", lambda trajectory, *_: unfounded_coordinates(trajectory)),
    "placed_answer": ("unfounded_coordinate", lambda trajectory, *_: misplaced_answer(trajectory)),
    "unnamed_answer": ("answer_in_question", lambda trajectory, *_: _named(trajectory)),
}
