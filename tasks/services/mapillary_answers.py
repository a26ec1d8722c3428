"""What the Mapillary API answers: its records, and its errors, which it tells apart by body rather than by status."""

import json
from typing import Any

from tasks.services.answer import Answer, said_at
from tasks.services.errors import Kind, ServiceError, safe_text

# What the service says of a box that must be split. Our own area check is first, so the second comes only if the
# service lowers its limit.
_BOX_ERRORS: tuple[tuple[str, Kind], ...] = (
    ("reduce the amount of data", "too_dense"),
    ("area is too large", "too_big"),
)


def graph_error(answer: Answer, secrets: tuple[str, ...]) -> ServiceError | None:
    """The error an answer's body speaks of; None where it speaks of none that is known."""
    error = error_object(answer)
    if error is None:
        return None
    match error.get("code"), error.get("error_subcode"):
        case 190, _:
            return _of(answer, error, "auth", False, secrets)
        case 4, _:
            return _of(answer, error, "rate_limit", True, secrets)
        case 100, 33:
            return _of(answer, error, "not_found", False, secrets)
        case 100, _:
            return _of(answer, error, "rejected", False, secrets)
        case 2, _:
            return _of(answer, error, "outage", True, secrets)
    return _of(answer, error, "outage", True, secrets) if error.get("is_transient") is True else None


def box_error(answer: Answer, secrets: tuple[str, ...]) -> ServiceError | None:
    """The same for the search of a box, which may be one that must be split."""
    known = graph_error(answer, secrets)
    error = error_object(answer)
    if known is not None or error is None:
        return known
    # By their words: code 1 is also any unknown error, and others come without a code. Taking an outage for a box
    # that is too full would make hundreds of requests of one.
    message = str(error.get("message", "")).lower()
    kind = next((kind for words, kind in _BOX_ERRORS if words in message), None)
    return None if kind is None else _of(answer, error, kind, False, secrets)


def _of(answer: Answer, error: dict[str, Any], kind: Kind, retryable: bool, secrets: tuple[str, ...]) -> ServiceError:
    said = said_at(safe_text(str(error.get("message", "")), secrets), answer.url)
    return ServiceError("mapillary", kind, said, status=answer.status, retryable=retryable)


def error_object(answer: Answer) -> dict[str, Any] | None:
    """The error that a body is, if it is one."""
    try:
        return error_in(json.loads(answer.body))
    except (ValueError, RecursionError):
        return None


def error_in(value: Any) -> dict[str, Any] | None:
    """The error that a JSON value holds."""
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else None


def row_of(value: Any) -> dict[str, Any]:
    """A record with its id as text; an empty one where it has none that is sound."""
    row: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    image_id = row.get("id")
    if isinstance(image_id, int) and not isinstance(image_id, bool):
        # JSON integers are exact in Python; a float has lost digits already.
        image_id = str(image_id)
    row["id"] = image_id if isinstance(image_id, str) and is_image_id(image_id) else ""
    if isinstance(row.get("sequence"), int):
        row["sequence"] = str(row["sequence"])
    return row


def is_image_id(text: str) -> bool:
    """Whether a text can be an image's id: digits, and nothing that could become part of an address."""
    return text.isascii() and text.isdigit()
