"""Rejection sampling (SpotAgent 3.2.1): which trajectories are worth learning from, and why the others are not."""

from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.answer_form import form_error, read_levels
from tasks.agent.environment import ANSWERED, CALL_BUDGET, Trajectory
from tasks.agent.recipe import Recipe
from tasks.agent.render import training_messages
from tasks.agent.tagged import NotTaggable
from tasks.geo.distance import distance_km
from tasks.reward.answer import Address, ParsedAnswer, parse_answer
from tasks.reward.names import country_code
from tasks.synthesize.grounding import named_in_question, unfounded_coordinates, unseen_signs

# Said by the parser where there is no answer at all, rather than one it cannot use.
_NOTHING_SAID = ("empty", "no_answer")


@dataclass(frozen=True)
class Truth:
    """Where a picture was really taken."""

    lat: float
    lon: float
    address: Address = field(default_factory=Address)


@dataclass(frozen=True)
class Verdict:
    """Whether a trajectory is kept; if not, every reason that applies, in a fixed order, with what was found."""

    reasons: tuple[str, ...]
    answer: str | None = None
    lat: float | None = None
    lon: float | None = None
    error_km: float | None = None
    evidence: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        return not self.reasons


def verdict(trajectory: Trajectory, recipe: Recipe, truth: Truth, settings: SynthesizeSettings) -> Verdict:
    """Kept iff every call was well-formed and answered, and the answer has the prompt's form and is near the truth.

    How near is `max_error_km`, for recipes that answer with a point and filter by it; GeoAgent's answer has to name
    the right country. Rules beyond the paper apply where `require` names them.
    """
    reasons = _process_reasons(trajectory)
    judged = _judge_answer(trajectory, recipe, truth, settings)
    reasons += [reason for reason in judged.reasons if reason not in reasons]
    evidence: list[str] = []
    for rule, (reason, offending_in) in _RULES.items():
        if rule in settings.require and (offending := offending_in(trajectory)):
            reasons.append(reason)
            evidence += offending[:5]
    return Verdict(tuple(reasons), judged.answer, judged.lat, judged.lon, judged.error_km, tuple(evidence))


def _process_reasons(trajectory: Trajectory) -> list[str]:
    """What is wrong with how it went."""
    reasons = []
    if any(not call.well_formed for call in trajectory.calls):
        reasons.append("malformed_call")
    if any(call.well_formed and not call.succeeded for call in trajectory.calls):
        reasons.append("tool_failed")
    if trajectory.end_reason == CALL_BUDGET:
        reasons.append("too_many_calls")
    elif trajectory.end_reason != ANSWERED:
        reasons.append(trajectory.end_reason)
    try:
        training_messages(trajectory.messages, trajectory.tools)
    except NotTaggable:
        reasons.append("foreign_markup")
    return reasons


def _judge_answer(trajectory: Trajectory, recipe: Recipe, truth: Truth, settings: SynthesizeSettings) -> Verdict:
    """What is wrong with what it answered."""
    text = trajectory.final_text
    if recipe.answer_form == "levels":
        return _judge_levels(text, truth)
    reasons = []
    answer = parse_answer(text)
    if not isinstance(answer, ParsedAnswer):
        reason = "no_answer" if answer.reason in _NOTHING_SAID else "unparsable_answer"
        return Verdict((reason,), answer.text.strip() or None)
    if form_error(recipe.answer_form, text) is not None:
        reasons.append("wrong_form")
    if answer.lat is None or answer.lon is None:
        return Verdict((*reasons, "missing_field"), answer.text.strip())
    if not answer.address.country or not answer.address.city:
        reasons.append("missing_field")
    error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
    # Strictly nearer, eq. 7; written so that an error that is not a number is not kept.
    if recipe.judged_by_distance and not error_km < settings.max_error_km:
        reasons.append("too_far")
    return Verdict(tuple(reasons), answer.text.strip(), answer.lat, answer.lon, error_km)


def _judge_levels(text: str, truth: Truth) -> Verdict:
    if not text.strip():
        return Verdict(("no_answer",))
    value = read_levels(text)
    if value is None:
        return Verdict(("wrong_form",), text[:300])
    final = str(value["FinalAnswer"])
    said, true = country_code(final.split(";")[0].strip()), country_code(truth.address.country or "")
    return Verdict(() if said is not None and said == true else ("wrong_country",), final)


def _named(trajectory: Trajectory) -> list[str]:
    answer = parse_answer(trajectory.final_text)
    return named_in_question(trajectory, (answer.address.country, answer.address.city))


_RULES: dict[str, tuple[str, Callable[[Trajectory], list[str]]]] = {
    "visible_signs": ("unseen_sign", unseen_signs),
    "given_coordinates": ("unfounded_coordinate", unfounded_coordinates),
    "unnamed_answer": ("answer_in_question", _named),
}
