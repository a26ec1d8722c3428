"""Parts of a file, and whether the asker still has the right one (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import hashlib
import re

from starlette.requests import Request
from starlette.responses import Response

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def byte_range(header: str, length: int) -> tuple[int, int] | None:
    """[start, end) of a Range header; None without a usable one, which means the whole; (0, 0) past the end."""
    match = _RANGE.fullmatch(header.strip())
    if not match or match.groups() == ("", ""):
        return None
    if match[1] == "":
        return (max(0, length - int(match[2])), length) if int(match[2]) else (0, 0)
    start, end = int(match[1]), min(length, int(match[2]) + 1 if match[2] else length)
    if match[2] and int(match[2]) < start:
        return None
    return (start, end) if start < length else (0, 0)


def etag_of(data: bytes) -> str:
    """A strong validator: other bytes, another one."""
    return f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'


def answer_file(request: Request, data: bytes, media_type: str, headers: dict[str, str]) -> Response:
    """The file, the part asked for, or word that it is unchanged."""
    etag = etag_of(data)
    headers = {**headers, "etag": etag, "accept-ranges": "bytes"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    wanted = byte_range(request.headers.get("range", ""), len(data))
    if request.headers.get("if-range", etag) != etag:
        wanted = None  # it has a part of another file: the whole of this one
    if wanted is None:
        return Response(data, media_type=media_type, headers=headers)
    start, end = wanted
    if wanted == (0, 0):
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{len(data)}"})
    headers["content-range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return Response(data[start:end], 206, headers, media_type)
