"""A transfer that broke off, to be continued where it ended instead of begun again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True)
class Partial:
    """The beginning of a file, and what identifies the file it is the beginning of."""

    data: bytes
    etag: str
    length: int
    content_type: str

    def headers(self) -> dict[str, str]:
        """Asks for the rest of this file; a host that has another one by now sends it whole."""
        return {"Range": f"bytes={len(self.data)}-", "If-Range": self.etag}

    def continued_by(self, headers: Mapping[str, str]) -> bool:
        """Whether an answer of status 206 is exactly the rest: no byte more, none less, of the same file."""
        named = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        expected = (str(len(self.data)), str(self.length - 1), str(self.length))
        same_file = headers.get("etag", self.etag) == self.etag and "content-encoding" not in headers
        return named is not None and named.groups() == expected and same_file


def begun(status: int, headers: Mapping[str, str], data: bytes) -> Partial | None:
    """What can be continued of a broken answer, or None.

    Only a strong validator promises the same bytes under it. An encoded body cannot be continued: its bytes are not
    those the length and the ranges count.
    """
    etag, length = headers.get("etag", ""), headers.get("content-length", "")
    if status != 200 or not data or not length.isdigit() or "content-encoding" in headers:
        return None
    if not _STRONG_ETAG.fullmatch(etag) or not len(data) < int(length):
        return None
    return Partial(data, etag, int(length), headers.get("content-type", ""))


class WrongPart(Exception):
    """An answer that is not the part that was asked for; the message says why."""


class Download:
    """One file on its way, over as many attempts as it takes."""

    def __init__(self) -> None:
        self.partial: Partial | None = None

    @property
    def held(self) -> int:
        """Bytes that need not come again."""
        return len(self.partial.data) if self.partial else 0

    def headers(self) -> dict[str, str]:
        """What the next request asks with."""
        # Ranges and lengths count encoded bytes: without an encoding there is nothing to confuse.
        return {"Accept-Encoding": "identity", **(self.partial.headers() if self.partial else {})}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Look at an answer before its body is read; WrongPart if its bytes must not be used."""
        partial = self.partial
        if status in (200, 416):
            self.partial = None  # the whole file comes, or the host has a shorter one by now
        if status == 416 and partial is not None:
            raise WrongPart("the host has another file by now")
        if status == 206 and (partial is None or not partial.continued_by(headers)):
            self.partial = None
            raise WrongPart("not the part of the file that was asked for")

    def broke_off(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        """Keep what came before the break, as far as it can be continued."""
        if status == 200:
            self.partial = begun(status, headers, data)
        elif status == 206 and self.partial is not None:
            more = self.partial.data + data
            self.partial = replace(self.partial, data=more) if len(more) < self.partial.length else None

    def whole(self, data: bytes) -> bytes:
        """The file, of which this is the last part; WrongPart if it is not as long as it was said to be."""
        partial, self.partial = self.partial, None
        assert partial is not None, "nothing was begun"
        if len(partial.data) + len(data) != partial.length:
            raise WrongPart("the parts do not add up to the file")
        return partial.data + data
