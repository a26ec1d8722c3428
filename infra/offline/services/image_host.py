"""The image host: signed addresses that expire, and the pictures behind them, painted when first asked for."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict

from PIL import Image, ImageFilter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.computing import compute
from infra.offline.fault_layer import changes, clock, is_deleted
from infra.offline.render import encode, paint
from infra.offline.seeded_random import fraction
from infra.offline.services.ranges import answer_file
from infra.offline.world import ImageRecord, World

DEFAULT_LIFETIME_S = 3600.0
_CACHE_BYTES = 96 * 1024 * 1024


class ImageHost:
    """Serves pictures of a world under signed addresses."""

    def __init__(self, world: World, lifetime_s: float = DEFAULT_LIFETIME_S) -> None:
        self.world, self.lifetime_s = world, lifetime_s
        self._secret = hashlib.blake2b(f"image host {world.seed}".encode()).digest()
        self._kept: OrderedDict[tuple[int, int, str, int], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

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
        data = await compute(self.jpeg, record, size, changes(request.scope, image_id))
        return answer_file(request, data, "image/jpeg", {"cache-control": "max-age=1209600"})

    def jpeg(self, record: ImageRecord, size: str, version: int = 0) -> bytes:
        """The bytes of one size ("256", "1024", "2048", "original"); painted once while the cache has room.

        A later version has one more part of it made unrecognizable, as upstream does on request.
        """
        if record.condition == "exact_duplicate":
            record = self.world.images(record.place)[record.painted_as]
        key = (record.place, record.slot, size, version)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        image = paint(self.world, record)
        for count in range(version):
            _blur(image, fraction("blurred", record.image_id, count))
        if size != "original" and int(size) < image.width:
            image = image.resize(
                (int(size), round(image.height * int(size) / image.width)), resample=1, reducing_gap=2.0
            )
        data = encode(image)
        with self._lock:
            self._kept_bytes += len(data) - len(self._kept.get(key, b""))
            self._kept[key] = data
            while self._kept_bytes > _CACHE_BYTES:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        return data


def _blur(image: Image.Image, where: float) -> None:
    """Blur a part of the street, anew for each version, in place."""
    left, top = round(image.width * 0.8 * where), round(image.height * 0.55)
    box = (left, top, left + image.width // 10, top + image.height // 8)
    image.paste(image.crop(box).filter(ImageFilter.GaussianBlur(image.height / 60)), box)
