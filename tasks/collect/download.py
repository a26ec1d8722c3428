"""One picture from its address to the bytes that are stored, or why it cannot be used."""

import hashlib
from dataclasses import dataclass

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate, Kind
from tasks.images import BadImage, equirectangular, inspect, strip_exif
from tasks.pace import computing
from tasks.services import Mapillary, ServiceError, safe_url
from tasks.services.mapillary import Fetched

# What one picture's address may answer for good. All else, a transfer that breaks off each time included, may be
# better later: taking another picture instead would make the result depend on the weather.
_THIS_PICTURE_ONLY = frozenset({"not_found", "rejected", "bad_response", "too_big"})
FRESH_URLS = 3  # times a new address is asked for when one is past its time


@dataclass(frozen=True)
class Picture:
    """Verified bytes, ready to be stored."""

    data: bytes
    extension: str
    width: int
    height: int
    request_url: str  # without its signature
    etag: str | None  # the host's mark of the bytes that came
    source_sha256: str  # of the bytes that came
    source_bytes: int


class Unusable(Exception):
    """This picture cannot be used, however often it is asked for; another may be."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail


async def download(mapillary: Mapillary, candidate: Candidate, settings: CollectSettings) -> Picture:
    """The candidate's picture, fully decoded once; `Unusable`, or ServiceError when the service is out."""
    assert candidate.kind is not None, "a picture of no clear kind answers no wish"
    try:
        url = candidate.url or await _fresh_url(mapillary, candidate.source_id)
        for attempt in range(1, settings.downloads + 1):
            came, url = await _fetch(mapillary, candidate.source_id, url)
            try:
                stored, extension, width, height = await computing.run(prepare, came.data, candidate.kind, settings)
                sha256 = hashlib.sha256(came.data).hexdigest()
                return Picture(
                    stored, extension, width, height, safe_url(url), came.etag or None, sha256, len(came.data)
                )
            except BadImage as error:
                # A broken transfer may be whole the next time; a small picture stays small.
                if error.kind not in ("truncated", "not_an_image") or attempt == settings.downloads:
                    raise Unusable(error.kind, error.detail) from error
    except ServiceError as error:
        if error.kind in _THIS_PICTURE_ONLY and not error.retryable:
            raise Unusable(error.kind, error.message) from error
        raise
    raise AssertionError("settings.downloads is at least 1")


async def _fetch(mapillary: Mapillary, source_id: str, url: str) -> tuple[Fetched, str]:
    """The bytes, and the address that gave them: addresses are signed and expire while an item waits its turn."""
    for _ in range(FRESH_URLS):
        try:
            return await _whole(mapillary, url), url
        except ServiceError as error:
            if error.kind != "expired":
                raise
        url = await _fresh_url(mapillary, source_id)
    return await _whole(mapillary, url), url  # still expired: the host's trouble, so it fails and is tried again later


async def _whole(mapillary: Mapillary, url: str) -> Fetched:
    came = await mapillary.fetch_if_changed(url, None)
    assert came is not None, "nothing was asked on condition"
    return came


async def _fresh_url(mapillary: Mapillary, source_id: str) -> str:
    row = await mapillary.image(source_id, ("id", "thumb_original_url"))
    url = row.get("thumb_original_url")
    if not isinstance(url, str):
        raise Unusable("no_url", "the service offers no picture for this id")
    return url


def prepare(data: bytes, kind: Kind, settings: CollectSettings) -> tuple[bytes, str, int, int]:
    """The bytes to store, their extension, width and height."""
    if kind == "panorama":
        width, height = settings.panorama_width, settings.panorama_width // 2
        return equirectangular(data, width, height, settings.panorama_min_pixels), "jpg", width, height
    facts = inspect(data)
    if facts.width * facts.height < settings.photo_min_pixels:
        needed = settings.photo_min_pixels
        raise BadImage("too_small", f"{facts.width} x {facts.height}, at least {needed} pixels are needed")
    return strip_exif(data), facts.extension, facts.width, facts.height
