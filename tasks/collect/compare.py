"""Whether the source still has the bytes of a collected picture, or others.

Others count only if they are a picture: half a file, or a page in its place, changes nothing that the lake has.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from tasks.collect.candidates import key_of
from tasks.collect.download import FRESH_URLS
from tasks.collect.hosts import GONE, Hosts, Refused, is_refusal
from tasks.collect.providers.provider import FetchedBytes, StreetViewProvider
from tasks.collect.responses import FetchedImage, StageResponses
from tasks.imaging.decode import BadImage, Encoded
from tasks.runtime.computing import computing
from tasks.services import ServiceError, safe_url

KEPT_S = 24 * 3600.0  # that a changed picture waits for its place: a check of everything takes hours


@dataclass(frozen=True)
class Known:
    """A picture as it was seen last."""

    source_id: str
    etag: str | None
    sha256: str  # of the bytes that came


@dataclass(frozen=True)
class Found:
    """What became of it, and the bytes that came, if any did that are a picture."""

    status: Literal["same", "changed", "unavailable", "deleted"]
    image: FetchedImage | None = None


class _Unavailable(Exception):
    """Its host does not have it, or the service offers no address."""


class _Deleted(Exception):
    """Its host does not have it, and its host is the provider."""


async def compared(
    known: Known, url: str, provider: StreetViewProvider, responses: StageResponses, hosts: Hosts, downloads: int
) -> Found:
    """Whether the bytes are still those that are known; only without the host's mark of them do they come again.

    What cannot be read is requested again, `downloads` times in all, and is `unavailable` then. `Refused` where the
    host does not give it, and does not say why.
    """
    # What a run that was killed has left: the host says whether it still is the picture.
    key = key_of(provider.name, known.source_id)
    left = responses.find_image(key)
    if left is not None and not await _counts(left, known):
        left = None
    mark = left.etag if left is not None and left.etag else known.etag
    try:
        for _ in range(downloads):
            fetched, url = await _asked(known.source_id, url, mark, provider, hosts)
            if fetched is not None:
                image = FetchedImage.now(fetched.data, fetched.etag or None, safe_url(url))
            elif left is not None and mark == left.etag:
                image = replace(left, at=datetime.now(UTC))
            else:
                return Found("same")
            if image.sha256 == known.sha256:
                return Found("same", image)
            # Before it is decoded, where a kill would lose it.
            await responses.keep_image(key, image, KEPT_S)
            if await _counts(image, known):
                return Found("changed", image)
            responses.forget_image(key)
    except _Unavailable:
        pass
    except _Deleted:
        return Found("deleted")
    return Found("unavailable")


async def _counts(image: FetchedImage, known: Known) -> bool:
    """Whether bytes are those that were fetched, or at least a picture."""
    return image.sha256 == known.sha256 or await computing.run(_is_picture, image.data)


def _is_picture(data: bytes) -> bool:
    try:
        Encoded.open(data).check()
    except BadImage:
        return False
    return True


async def _asked(
    source_id: str, url: str, mark: str | None, provider: StreetViewProvider, hosts: Hosts
) -> tuple[FetchedBytes | None, str]:
    """What the host says, and under which address: new ones are requested where one is past its time."""
    since = hosts.counts()
    for attempt in range(1 + FRESH_URLS):
        if not url:
            break
        try:
            fetched = await provider.fetch(url, mark)
            hosts.answered(url)
            return fetched, url
        except ServiceError as error:
            if error.kind == "not_found" and provider.limits.missing_is_gone:
                raise _Deleted from error
            if error.kind == "not_found" or (error.status == GONE and attempt == FRESH_URLS):
                break
            if error.kind != "expired" or attempt == FRESH_URLS:
                if is_refusal(error):
                    raise Refused(error, url, since) from error
                raise
        url = await provider.address(source_id)
    raise _Unavailable
