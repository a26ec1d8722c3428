"""The image host: signed addresses that expire, byte ranges and validators, pictures painted when first requested."""

import hashlib
import hmac
import re
import threading

from cachetools import LRUCache, cached
from PIL import Image, ImageFilter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.computing import compute_in_thread
from infra.offline.fault_layer import change_count, clock, is_deleted
from infra.offline.render import encode, paint
from infra.offline.seeded_random import fraction
from infra.offline.world import ImageRecord, World

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
DEFAULT_LIFETIME_S = 3600.0
_CACHE_BYTES = 96 * 1024 * 1024


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
    """The file, the part requested, or word that it is unchanged."""
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


class ImageHost:
    """Serves pictures of a world under signed addresses."""

    def __init__(self, world: World, lifetime_s: float = DEFAULT_LIFETIME_S) -> None:
        self.world, self.lifetime_s = world, lifetime_s
        self._secret = hashlib.blake2b(f"image host {world.seed}".encode()).digest()
        self._painted = cached(LRUCache(_CACHE_BYTES, len), condition=threading.Condition())(self._paint)

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/mapillary-cdn/m/{image_id}/{size}.jpg", self._picture)]

    def signed_url(self, base_url: str, image_id: str, size: str, now: float, expired: bool = False) -> str:
        """An address for one size of an image, good for the host's lifetime; `oe` is its end, hexadecimal unix time."""
        end = int(now + (-60.0 if expired else self.lifetime_s))
        signature = self._signature(image_id, size, end)
        return f"{base_url.rstrip('/')}/mapillary-cdn/m/{image_id}/{size}.jpg?oe={end:X}&oh={signature}"

    def _signature(self, image_id: str, size: str, end: int) -> str:
        return hmac.new(self._secret, f"{image_id}/{size}/{end:X}".encode(), hashlib.sha256).hexdigest()[:32]

    async def _picture(self, request: Request) -> Response:
        image_id, size = request.path_params["image_id"], request.path_params["size"]
        try:
            end = int(request.query_params.get("oe", ""), 16)
        except ValueError:
            return PlainTextResponse("Bad URL timestamp", 403)
        if not hmac.compare_digest(self._signature(image_id, size, end), request.query_params.get("oh", "")):
            return PlainTextResponse("Bad URL hash", 403)
        if end < clock(request.scope) or "expired_url" in request.scope.get("faults", ()):
            return PlainTextResponse("URL signature expired", 403)
        record = self.world.image(image_id)
        if record is None or is_deleted(request.scope, image_id):
            return PlainTextResponse("Not Found", 404)
        data = await compute_in_thread(self.jpeg, record, size, change_count(request.scope, image_id))
        return answer_file(request, data, "image/jpeg", {"cache-control": "max-age=1209600"})

    def jpeg(self, record: ImageRecord, size: str, version: int = 0) -> bytes:
        """The bytes of one size ("256", "1024", "2048", "original"); painted once while the cache has room.

        A later version has one more part of it made unrecognizable, as upstream does on request.
        """
        if record.condition == "exact_duplicate":
            record = self.world.images(record.place)[record.painted_as]
        return self._painted(record, size, version)

    def _paint(self, record: ImageRecord, size: str, version: int) -> bytes:
        image = paint(self.world, record)
        for count in range(version):
            _blur(image, fraction("blurred", record.image_id, count))
        if size != "original" and int(size) < image.width:
            image = image.resize(
                (int(size), round(image.height * int(size) / image.width)), resample=1, reducing_gap=2.0
            )
        return encode(image)


def _blur(image: Image.Image, where: float) -> None:
    """Blur a part of the street, anew for each version, in place."""
    left, top = round(image.width * 0.8 * where), round(image.height * 0.55)
    box = (left, top, left + image.width // 10, top + image.height // 8)
    image.paste(image.crop(box).filter(ImageFilter.GaussianBlur(image.height / 60)), box)
