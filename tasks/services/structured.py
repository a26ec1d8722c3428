"""An answer in a given form: asked for by its JSON schema, checked, and repaired once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.messages import ChatReply, Message, Usage
from tasks.services.chat import Chat
from tasks.services.chat_reply import REFUSAL

LONGEST = 1_000_000  # characters of an answer that are read

Form = TypeVar("Form", bound=BaseModel)


class BadStructure(ValueError):
    """No answer had the form, after one repair; what was asked for is paid for all the same."""

    def __init__(self, fault: str, reply: ChatReply, usage: Usage) -> None:
        super().__init__(fault)
        self.reply, self.usage = reply, usage


async def structured(
    chat: Chat, role: str, messages: Sequence[Message], form: type[Form], **options: Any
) -> tuple[Form, ChatReply]:
    """(the value, the last reply with what all of them used), or BadStructure.

    A first answer that is no JSON, or not of the form, is shown to the model with its fault, once.
    """
    schema = {"name": form.__name__, "strict": True, "schema": form.model_json_schema()}
    asked = list(messages)
    usage, fault = Usage(), ""
    for _ in range(2):
        reply = await chat.complete(
            role, asked, response_format={"type": "json_schema", "json_schema": schema}, **options
        )
        usage += reply.usage
        try:
            return read_structured(reply, form), replace(reply, usage=usage)
        except ValueError as error:
            fault = str(error)
        asked = [
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
