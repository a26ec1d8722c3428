"""Moments as tables and cameras write them."""

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"\d{9,10}(?:\.\d+)?|\d{12,13}(?:\.\d+)?")
_CAMERA = re.compile(r"(\d{4}):(\d{2}):(\d{2})(.*)")


def read_time(text: str) -> datetime | None:
    """ISO 8601, a camera's 2019:05:01 12:00:00, or seconds or milliseconds since 1970; None when it is none of them.

    Without a time zone it is taken as UTC. Nothing before photography or after tomorrow's clocks is believed.
    """
    text = text.strip()
    try:
        if _NUMBER.fullmatch(text):
            number = float(text)
            moment = _EPOCH + timedelta(seconds=number / 1000 if number > 1e11 else number)
        else:
            camera = _CAMERA.fullmatch(text)
            iso = f"{camera[1]}-{camera[2]}-{camera[3]}{camera[4]}" if camera else text
            moment = datetime.fromisoformat(iso)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if 1826 <= moment.year <= 2100 else None
