"""A model's text taken apart: what it thinks, and what it says."""

import re

_THINK = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<(/?)(think|answer|tool_call|tool_response)>", re.IGNORECASE)


def split_thought(text: str) -> tuple[str, str]:
    """(what stands inside <think> tags, the rest); a text without tags is all rest."""
    thoughts = [match.group(1).strip() for match in _THINK.finditer(text)]
    return "\n".join(t for t in thoughts if t), _THINK.sub("", text).strip()


def without_tags(text: str) -> str:
    """The text with our own tags made harmless, for words that are quoted inside a thought."""
    return _TAG.sub(r"(\1\2)", text)
