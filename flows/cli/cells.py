"""Values of a table as text: one line each, long ones shortened for a screen."""

import json
from datetime import datetime, timedelta
from typing import Any

LONGEST = 1000  # characters of a value: a whole message, not a whole file


def one_line(value: Any, longest: int = LONGEST) -> str:
    """The value on one line, cut where it is longer than a person reads."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}" + (" UTC" if value.utcoffset() == timedelta(0) else "")
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
