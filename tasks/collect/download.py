"""One picture from its address to the image store, or why it cannot be used."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from schemas.settings.collect import CollectSettings
from tasks.collect.batches import Batches
from tasks.collect.candidates import Candidate, Kind
from tasks.collect.hosts import GONE, AtHost, Hosts, Refused, is_refusal
from tasks.collect.providers.provider import StreetViewProvider
from tasks.collect.responses import FetchedImage, StageResponses
from tasks.imaging.images import BadImage, equirectangular
from tasks.imaging.metadata import cleaned
from tasks.lake.image_store import ImageStore
from tasks.runtime.computing import computing
from tasks.services import ServiceError, safe_url

# What one picture's address may answer for good. All else, a transfer that breaks off each time included, may be
# better later: taking another picture instead would make the result depend on passing trouble.
_THIS_PICTURE_ONLY = frozenset({"not_found", "rejected", "bad_response", "too_big"})
FRESH_URLS = 3  # times a new address is requested when one is past its time


@dataclass(frozen=True)
class Picture:
    """A picture that was stored."""

    image: FetchedImage
    sha256: str
    extension: str
    size: int  # in bytes
    width: int
    height: int


class Unusable(Exception):
    """This picture cannot be used, however often it is requested; another may be.

    With `url`, what came from there instead of a picture may be the host's trouble: so while it has given no other.
    """

    def __init__(self, kind: str, detail: str, url: str | None = None) -> None:
        super().__init__(kind, detail, url)
        self.kind = kind
        self.detail = detail
        self.url = url


@dataclass(frozen=True)
class Downloads:
    """The way of pictures from their hosts to the store."""

    providers: Sequence[StreetViewProvider]
    settings: CollectSettings
    store: ImageStore
    responses: StageResponses
    hosts: Hosts = field(default_factory=Hosts)

    async def get(self, candidate: Candidate, image: FetchedImage | None = None) -> Picture:
        """The candidate's picture, fully decoded once; `Unusable`, or ServiceError when the service is out.

        Its bytes are kept while they wait to be decoded, until the caller forgets them. Those that had come
        before count as a download.
        """
        assert candidate.kind is not None, "a picture of no clear kind is not used"
        key, url = candidate.key, candidate.url
        try:
            for attempt in range(1, self.settings.downloads + 1):
                if image is None:
                    image, url = await self._fetch(candidate, url)
                    await self.responses.keep_image(key, image)
                try:
                    picture = await computing.run(_store, image, candidate.kind, self.settings, self.store)
                    self.hosts.answered(image.request_url)
                    return picture
                except BadImage as error:
                    # A broken transfer may be whole the next time; a small picture stays small.
                    broken = error.kind in ("truncated", "not_an_image")
                    if not broken:
                        self.hosts.answered(image.request_url)
                    if not broken or attempt == self.settings.downloads:
                        raise Unusable(error.kind, error.detail, image.request_url if broken else None) from error
                self.responses.forget_image(key)
                image = None
        except ServiceError as error:
            at = error.url if isinstance(error, AtHost) else None
            if error.status == GONE:
                raise Unusable("not_found", error.message, at) from error
            if error.kind in _THIS_PICTURE_ONLY and not error.retryable:
                raise Unusable(error.kind, error.message, at) from error
            raise
        raise AssertionError("settings.downloads is at least 1")

    async def _fetch(self, candidate: Candidate, url: str | None) -> tuple[FetchedImage, str]:
        """The bytes, and the address that gave them: addresses are signed and expire while an item waits its turn."""
        provider = self._by_name[candidate.source]
        url = url or await self._fresh_url(provider, candidate.source_id)
        since = self.hosts.counts()
        for attempt in range(1 + FRESH_URLS):
            try:
                fetched = await provider.fetch(url)
                assert fetched is not None, "nothing was queried on condition"
                return FetchedImage.now(fetched.data, fetched.etag or None, safe_url(url)), url
            except ServiceError as error:
                if error.kind != "expired" or attempt == FRESH_URLS:
                    if is_refusal(error):
                        raise Refused(error, url, since) from error
                    if error.status is None:
                        raise
                    raise AtHost(error, url) from error
            url = await self._fresh_url(provider, candidate.source_id)
        raise AssertionError("the last attempt returns or raises")

    @cached_property
    def _by_name(self) -> dict[str, StreetViewProvider]:
        return {provider.name: provider for provider in self.providers}

    @cached_property
    def _addresses(self) -> dict[str, Batches[str]]:
        # After a kill every picture that was under way needs a new one: they are requested together.
        return {provider.name: Batches(provider.addresses, provider.limits.ids) for provider in self.providers}

    async def _fresh_url(self, provider: StreetViewProvider, source_id: str) -> str:
        url = None
        try:
            url = await self._addresses[provider.name].get(source_id)
        except ServiceError as error:
            if error.retryable or error.kind not in _THIS_PICTURE_ONLY:
                raise
            # Of a whole list, which one odd id may spoil: it says nothing of each.
        if url is None:
            url = await provider.address(source_id)
        if not url:
            raise Unusable("no_url", "the service offers no picture for this id")
        return url


def _store(image: FetchedImage, kind: Kind, settings: CollectSettings, store: ImageStore) -> Picture:
    data, extension, width, height = prepare(image.data, kind, settings)
    return Picture(image, store.put(data, extension), extension, len(data), width, height)


def prepare(data: bytes, kind: Kind, settings: CollectSettings) -> tuple[bytes, str, int, int]:
    """The bytes to store, without anything that tells of their maker; their extension, width and height."""
    if kind == "panorama":
        width, height = settings.panorama_width, settings.panorama_width // 2
        return equirectangular(data, width, height, settings.panorama_min_pixels), "jpg", width, height
    clean, facts = cleaned(data)
    if facts.width * facts.height < settings.photo_min_pixels:
        needed = settings.photo_min_pixels
        raise BadImage("too_small", f"{facts.width} x {facts.height}, at least {needed} pixels are needed")
    return clean, facts.extension, facts.width, facts.height
