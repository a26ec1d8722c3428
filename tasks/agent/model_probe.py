"""Whether a role's model answers: to words, to a picture, with a tool call, in a given form."""

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import GeofixError
from schemas.messages import ChatReply, Message, Usage, text_part
from tasks.services.chat import Chat
from tasks.services.chat_reply import REFUSAL
from tasks.services.errors import ServiceError

LONGEST = 1_000_000  # characters of an answer that are read
WORDS, PICTURE, TOOL, FORM = "words", "picture", "tool", "form"
CHECKS = (WORDS, PICTURE, TOOL, FORM)
VECTORS = "vectors"  # the one check of a model that embeds
_REPORT = {
    "type": "function",
    "function": {
        "name": "report",
        "description": "Report the word that was asked for.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
            "additionalProperties": False,
        },
    },
}
_QUESTIONS = {
    WORDS: "Answer with the one word: ok",
    PICTURE: "Describe this picture in one sentence.",
    TOOL: "Call the tool `report` with the word ok.",
    FORM: "Answer as JSON with the word ok.",
}
MAX_TOKENS = 512  # a model that reasons first needs room


Form = TypeVar("Form", bound=BaseModel)


class BadStructure(ValueError):
    """No answer had the form, after one repair; its requests are paid for."""

    def __init__(self, fault: str, reply: ChatReply, usage: Usage) -> None:
        super().__init__(fault)
        self.reply, self.usage = reply, usage


async def structured(
    chat: Chat, role: str, messages: Sequence[Message], form: type[Form], **options: Any
) -> tuple[Form, ChatReply]:
    """(the value, the last reply with what all of them used), or BadStructure.

    A first answer that is not JSON, or not of the form, is shown to the model with its fault, once.
    """
    schema = {"name": form.__name__, "strict": True, "schema": form.model_json_schema()}
    question = list(messages)
    usage, fault = Usage(), ""
    for _ in range(2):
        reply = await chat.complete(
            role, question, response_format={"type": "json_schema", "json_schema": schema}, **options
        )
        usage += reply.usage
        try:
            return read_structured(reply, form), replace(reply, usage=usage)
        except ValueError as error:
            fault = str(error)
        question = [
            *messages,
            {"role": "assistant", "content": reply.text[:LONGEST]},
            {"role": "user", "content": f"This is not the form that was asked for: {fault}. Answer with JSON alone."},
        ]
    raise BadStructure(fault, reply, usage)


def read_structured(reply: ChatReply, form: type[Form]) -> Form:
    """The value of a reply that has the form, also inside a fence or after a thought; ValueError says what is wrong."""
    if reply.is_cut:
        raise ValueError("the answer was cut at its longest length")
    if reply.finish_reason in (REFUSAL, "content_filter"):
        raise ValueError(f"the model refused: {reply.text[:100]}")
    text = reply.text[:LONGEST].rpartition("</think>")[2].strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0].strip()
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise ValueError(f"{where}: {first['msg'][:200]}") from None


class Word(BaseModel):
    """The form that is asked for."""

    model_config = ConfigDict(extra="forbid")
    word: str


@dataclass
class Probe:
    """What a role's model did; a check that failed says why."""

    role: str
    failed: dict[str, str] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0  # of the quickest answer
    model: str = ""  # as its server names it
    checks: tuple[str, ...] = CHECKS  # that were made

    def works(self, check: str) -> bool:
        return check not in self.failed


async def probe(chat: Chat, role: str) -> Probe:
    """Ask a role's model one question of each kind. What is wrong is told, never raised."""
    result = Probe(role)
    times: list[float] = []
    for check in CHECKS:
        began_s = time.monotonic()
        try:
            reply = await _ask(chat, role, check)
        except BadStructure as error:
            result.usage += error.usage
            result.failed[check] = str(error)
            continue
        except (ServiceError, GeofixError) as error:
            result.failed[check] = str(error)
            if isinstance(error, ServiceError) and error.kind in ("auth", "quota", "not_found"):
                result.failed |= {other: str(error) for other in CHECKS}
                return result
            continue
        times.append(time.monotonic() - began_s)
        result.usage += reply.usage
        result.model = reply.model
        if check == TOOL and not reply.tool_calls:
            result.failed[check] = f"no call, but {reply.text[:60]!r} ({reply.finish_reason})"
        elif check != TOOL and not reply.text:
            result.failed[check] = f"an empty answer ({reply.finish_reason})"
    result.seconds = min(times, default=0.0)
    return result


async def probe_embedder(chat: Chat, role: str) -> Probe:
    """Ask a role's model for the vectors of two texts. What is wrong is told, never raised."""
    result, began_s = Probe(role, checks=(VECTORS,)), time.monotonic()
    try:
        await chat.embed(role, ["Paris", "Lima"])
    except (ServiceError, GeofixError) as error:
        result.failed[VECTORS] = str(error)
    result.seconds = time.monotonic() - began_s
    return result


async def _ask(chat: Chat, role: str, check: str) -> ChatReply:
    try:
        return await _ask_once(chat, role, check, check == PICTURE)
    except ServiceError as error:
        if error.kind != "rejected" or check == PICTURE:
            raise
    return await _ask_once(chat, role, check, True)  # some models take no question without a picture


async def _ask_once(chat: Chat, role: str, check: str, with_picture: bool) -> ChatReply:
    question = _question(_QUESTIONS[check], with_picture)
    if check == FORM:
        _, reply = await structured(chat, role, question, Word, max_tokens=MAX_TOKENS)
        return reply
    return await chat.complete(role, question, tools=[_REPORT] if check == TOOL else None, max_tokens=MAX_TOKENS)


def _question(words: str, with_picture: bool = False) -> list[Message]:
    content: object = words
    if with_picture:
        content = [{"type": "image_url", "image_url": {"url": _picture()}}, text_part(words)]
    return [{"role": "user", "content": content}]


def _picture() -> str:
    """Sky over ground, 256 x 192."""
    from PIL import Image

    image = Image.new("RGB", (256, 192), (120, 170, 230))
    image.paste((90, 120, 60), (0, 110, 256, 192))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
