"""Rules beyond the paper's: does a trajectory say only what it could know when it said it?

They read stored messages alone, and an Observer's words where one was asked.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from schemas.messages import Message, image_reference
from tasks.agent.environment import Trajectory
from tasks.agent.thought import split_thought

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
        for text in _texts(message)
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
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return _texts(message), sum(image_reference(part) is not None for part in parts)


def _arguments(message: Message) -> list[str]:
    return [call["function"]["arguments"] for call in message.get("tool_calls") or []]


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    return [content] if isinstance(content, str) else [p["text"] for p in content or [] if p.get("type") == "text"]
