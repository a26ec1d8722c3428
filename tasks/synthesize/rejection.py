"""Rejection sampling (SpotAgent 3.2.1): which trajectories are worth learning from, and why the others are not."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from schemas.messages import Message, image_references, texts_of
from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.environment import ANSWERED, CALL_BUDGET, Trajectory
from tasks.agent.render import training_messages
from tasks.agent.tagged import NotTaggable, split_thought
from tasks.recipes.recipe import Judged, Recipe
from tasks.reward.answer import parse_answer
from tasks.reward.outcome import Truth

# Writing that is quoted. A straight single quote counts only at the edge of a word: the rest are apostrophes.
_QUOTED = re.compile(r"\"([^\"\n]{2,80})\"|“([^”\n]{2,80})”|«([^»\n]{2,80})»|(?<!\w)'([^'\n]{2,80})'(?!\w)")
_COORDINATE = re.compile(r"(?<![\w.])-?\d{1,3}\.(\d{3,})(?![\w.])")


def unseen_signs(trajectory: Trajectory) -> list[str]:
    """What thoughts quote that stands in no message the model could see by then.

    A thought may quote what the picture right before it shows: it is where the picture is read. Where an Observer did
    the reading, its words are the measure.
    """
    seen: list[str] = []
    observed = iter(trajectory.observations)
    unseen: list[str] = []
    after_picture = False
    for message in trajectory.messages:
        texts, pictures = _visible(message)
        if message["role"] != "assistant":
            after_picture = (after_picture and message["role"] == "tool") or bool(pictures)
            seen += [fold(text) for text in texts]
            seen += [fold(words) for _, words in zip(range(pictures), observed, strict=False)]
            continue
        thought, _ = split_thought(texts[0] if texts else "")
        is_reading = after_picture and not trajectory.observations
        known = "\n".join(seen)
        unseen += [quoted for quoted in quotes(thought) if not is_reading and fold(quoted) not in known]
        # What it asked a tool for is a message it can see as well.
        seen += [fold(text) for text in (*texts, *_arguments(message))]
        after_picture = False
    return unseen


def unfounded_coordinates(trajectory: Trajectory) -> list[str]:
    """Coordinates in thoughts, calls and the answer that no tool had given by then, to the decimals written."""
    given: list[float] = []
    unfounded: list[str] = []
    for message in trajectory.messages:
        texts, _ = _visible(message)
        numbers = [match for text in (*texts, *_arguments(message)) for match in _COORDINATE.finditer(text)]
        if message["role"] != "assistant":
            given += [float(match.group()) for match in numbers] if message["role"] == "tool" else []
            continue
        for match in numbers:
            half = 0.5 * 10.0 ** -len(match.group(1)) * 1.001
            if not any(abs(float(match.group()) - value) <= half for value in given):
                unfounded.append(match.group())
    return unfounded


def named_in_question(trajectory: Trajectory, names: Sequence[str | None]) -> list[str]:
    """Names of the answer that the system prompt or the question holds already."""
    asked = " ".join(
        fold(text)
        for message in trajectory.messages
        if message["role"] in ("system", "user")
        for text in texts_of(message)
    )
    return [name for name in names if name and re.search(rf"\b{re.escape(fold(name))}\b", asked)]


def fold(text: str) -> str:
    """Letters without accents and case, blanks as one: the same sign is written in several ways."""
    parts = unicodedata.normalize("NFKD", text.casefold().replace("ı", "i"))
    return " ".join("".join(char for char in parts if not unicodedata.combining(char)).split())


def quotes(text: str) -> Iterator[str]:
    """Everything a text puts in quotation marks."""
    for match in _QUOTED.finditer(text):
        yield next(group for group in match.groups() if group is not None)


def _visible(message: Message) -> tuple[list[str], int]:
    return texts_of(message), len(image_references([message]))


def _arguments(message: Message) -> list[str]:
    return [call["function"]["arguments"] for call in message.get("tool_calls") or []]


@dataclass(frozen=True)
class Verdict(Judged):
    """Whether a trajectory is kept; if not, every reason that applies, in a fixed order, with what was found."""

    evidence: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        return not self.reasons


def judge_trajectory(trajectory: Trajectory, recipe: Recipe, truth: Truth, settings: SynthesizeSettings) -> Verdict:
    """Kept iff every call was well-formed and answered, and the answer has the prompt's form and is near the truth.

    The recipe judges its answer; `max_error_km` is how near a point has to be. Rules beyond the paper apply where
    `require` names them.
    """
    reasons = _process_reasons(trajectory)
    judged = recipe.judge(trajectory.final_text, truth, settings.max_error_km)
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


def _named(trajectory: Trajectory) -> list[str]:
    answer = parse_answer(trajectory.final_text)
    return named_in_question(trajectory, (answer.address.country, answer.address.city))


_RULES: dict[str, tuple[str, Callable[[Trajectory], list[str]]]] = {
    "visible_signs": ("unseen_sign", unseen_signs),
    "given_coordinates": ("unfounded_coordinate", unfounded_coordinates),
    "unnamed_answer": ("answer_in_question", _named),
}
