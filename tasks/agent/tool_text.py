"""What a tool found, as the text a model reads: JSON of bounded length that cannot be taken for markup."""

import json
from typing import Any

TOO_LONG = {"error": "the result is too long to show"}


def as_text(value: dict[str, Any], max_chars: int) -> str:
    """A tool's value as JSON of at most `max_chars` characters that cannot be taken for tags.

    Strings are shortened, longest first, until the text fits, so that it stays JSON. `<` is written as its escape:
    a page that holds `</tool_response>`, `<answer>` or a control token must not become markup in a prompt.
    """
    limit = max_chars
    while True:
        text = json.dumps(_shorten(value, limit), ensure_ascii=False).replace("<", "\\u003c")
        if len(text) <= max_chars or limit <= 8:
            # What still does not fit has too many parts, not too long ones.
            return text if len(text) <= max_chars else json.dumps(TOO_LONG)
        limit = limit * 2 // 3


def _shorten(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else value[: limit - 1] + "…"
    if isinstance(value, dict):
        return {name: _shorten(part, limit) for name, part in value.items()}
    return [_shorten(part, limit) for part in value] if isinstance(value, list) else value
