"""What a tool found, as the text a model reads: JSON of bounded length that cannot be taken for markup."""

import json
from typing import Any

SHORTEST = 60  # characters of a text that still tell something
TOO_LONG = {"error": "the result is too long to show"}


def as_text(value: dict[str, Any], max_chars: int) -> str:
    """A tool's value as JSON of at most `max_chars` characters that cannot be taken for tags.

    Strings are shortened, longest first, until the text fits, so that it stays JSON; before they say nothing any more,
    the last entries of a list go. `<` is written as its escape: a page that holds `</tool_response>`, `<answer>` or a
    control token must not become markup in a prompt.
    """
    while True:
        text = _within(value, max_chars, SHORTEST)
        fewer = _fewer(value) if text is None else None
        if fewer is None:
            # What still does not fit has too many parts, not too long ones.
            return text or _within(value, max_chars, 8) or json.dumps(TOO_LONG)
        value = fewer


def _within(value: dict[str, Any], max_chars: int, shortest: int) -> str | None:
    """The text with strings cut to one length, the longest at which it fits; None below the shortest."""
    limits = [max_chars]
    while limits[-1] >= shortest:
        limits.append(limits[-1] * 2 // 3)
    limits.pop()
    if not limits:
        return None
    whole = _written(value, max_chars)
    if len(whole) <= max_chars:
        return whole
    # What does not fit at the shortest fits at no other: a large value is written twice and not at every length.
    if len(_written(value, limits[-1])) > max_chars:
        return None
    texts = (_written(value, limit) for limit in limits[1:])
    return next(text for text in texts if len(text) <= max_chars)


def _written(value: dict[str, Any], limit: int) -> str:
    return json.dumps(_shorten(value, limit), ensure_ascii=False).replace("<", "\\u003c")


def _fewer(value: dict[str, Any]) -> dict[str, Any] | None:
    """Without the last entries of its longest list; None where no list has several."""
    name, rows = max(
        ((name, part) for name, part in value.items() if isinstance(part, list)),
        key=lambda one: len(one[1]),
        default=("", []),
    )
    return {**value, name: rows[: max(1, len(rows) * 3 // 4)]} if len(rows) > 1 else None


def _shorten(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else value[: limit - 1] + "…"
    if isinstance(value, dict):
        return {name: _shorten(part, limit) for name, part in value.items()}
    return [_shorten(part, limit) for part in value] if isinstance(value, list) else value
