"""Street-level images from the Mapillary API v4."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from schemas.settings.services import is_loopback, is_private
from tasks.services.errors import ServiceError, safe_text, safe_url
from tasks.services.http import Answer, Connection, Http

MAX_BOX_AREA_DEG2 = 0.01
MAX_LIMIT = 2000  # both the default and the most the service gives; there is no next page

IMAGE_FIELDS = (
    "id",
    "sequence",
    "captured_at",
    "geometry",
    "computed_geometry",
    "compass_angle",
    "computed_compass_angle",
    "camera_type",
    "is_pano",
    "creator",
    "make",
    "model",
    "width",
    "height",
    "thumb_1024_url",
    "thumb_2048_url",
    "thumb_original_url",
)


class Mapillary:
    """Images by box or id, and their pixels. Rows are the API's own: an absent value is an absent key, ids are text."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        # In the header, so that the token stands in no address that anybody could log.
        headers = {"Authorization": f"OAuth {connection.key.get_secret_value()}"} if connection.key else {}
        self._http = Http(connection, headers=headers, **http_options)

    async def images_in_box(
        self,
        west: float,
        south: float,
        east: float,
        north: float,
        fields: Sequence[str] = IMAGE_FIELDS,
        is_pano: bool | None = None,
        limit: int = MAX_LIMIT,
    ) -> list[dict[str, Any]]:
        """The images in a box, at most `limit`.

        A large box silently returns fewer than there are, so a caller that wants all of them splits the box until the
        answer is well under the limit. Raises ServiceError of kind too_big or too_dense if the box must be split.
        """
        area = (east - west) * (north - south)
        if not (west < east and south < north):
            raise ServiceError("mapillary", "rejected", f"not a box: {west},{south},{east},{north}")
        if area > MAX_BOX_AREA_DEG2:
            raise ServiceError("mapillary", "too_big", f"box of {area:.4f} square degrees, {MAX_BOX_AREA_DEG2} allowed")
        params: dict[str, str | int] = {
            "bbox": ",".join(f"{edge:.7f}" for edge in (west, south, east, north)),
            "fields": ",".join(fields),
            "limit": min(limit, MAX_LIMIT),
        }
        if is_pano is not None:
            params["is_pano"] = "true" if is_pano else "false"
        value, answer = await self._http.request_json("GET", "/images", params=params, classify=self._classify_box)
        rows = value.get("data") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise self._http.bad_response("no list under 'data'", answer)
        return [self._row(row, answer) for row in rows]

    async def image(self, image_id: str, fields: Sequence[str] = IMAGE_FIELDS) -> dict[str, Any]:
        """One image, or ServiceError of kind not_found."""
        if not image_id.isascii() or not image_id.isdigit():
            raise ServiceError("mapillary", "rejected", "an image id is a string of digits")
        params = {"fields": ",".join(fields)}
        value, answer = await self._http.request_json("GET", f"/{image_id}", params=params, classify=self._classify)
        return self._row(value, answer)

    async def fetch(self, url: str) -> bytes:
        """The picture at a thumb URL, or ServiceError of kind expired: then ask for the image's URL again."""
        if not _may_fetch(url, self._http.endpoint.base_url):
            raise ServiceError("mapillary", "rejected", f"will not fetch from {safe_url(url)}")
        answer = await self._http.request("GET", url=url, accept="image/", classify=self._classify_file)
        return answer.body

    async def close(self) -> None:
        await self._http.close()

    def _row(self, value: Any, answer: Answer) -> dict[str, Any]:
        image_id = value.get("id") if isinstance(value, dict) else None
        if isinstance(image_id, int) and not isinstance(image_id, bool):
            # JSON integers are exact in Python; a float would already have lost digits and is refused below.
            image_id = str(image_id)
        if not isinstance(image_id, str) or not image_id:
            raise self._http.bad_response("an image without an id", answer)
        row: dict[str, Any] = {**value, "id": image_id}
        if isinstance(row.get("sequence"), int):
            row["sequence"] = str(row["sequence"])
        return row

    def _classify(self, answer: Answer) -> ServiceError | None:
        error = _error_object(answer)
        if error is None:
            return None
        said = safe_text(f"{answer.url} said: {error.get('message', '')}", self._http.secrets, limit=400)

        def of(kind: Any, retryable: bool) -> ServiceError:
            return ServiceError("mapillary", kind, said, status=answer.status, retryable=retryable)

        match error.get("code"), error.get("error_subcode"):
            case 190, _:
                return of("auth", False)
            case 4, _:
                return of("rate_limit", True)
            case 100, 33:
                return of("not_found", False)
            case 100, _:
                return of("rejected", False)
            case 2, _:
                return of("outage", True)
        if error.get("is_transient") is True:
            return of("outage", True)
        return None

    def _classify_box(self, answer: Answer) -> ServiceError | None:
        known = self._classify(answer)
        error = _error_object(answer)
        if known is not None or error is None or answer.status != 500:
            return known
        # Of the errors of a box only "too big" comes without a code. Our own area check is first, so this happens
        # only if the service lowers its limit; either way the remedy is to split.
        kinds: dict[Any, Any] = {None: "too_big", 1: "too_dense"}
        if error.get("code") not in kinds:
            return None
        said = safe_text(f"{answer.url} said: {error.get('message', '')}", self._http.secrets, limit=400)
        return ServiceError("mapillary", kinds[error.get("code")], said, status=answer.status)

    def _classify_file(self, answer: Answer) -> ServiceError | None:
        if answer.status in (401, 403, 410):
            return ServiceError(
                "mapillary", "expired", f"{answer.url}: the signed address is past its time", status=403
            )
        return None


def _may_fetch(url: str, base_url: str) -> bool:
    """Whether an address from an answer may be read: it must not lead us into our own network.

    A service on the open net hands out addresses there, by https; one in a private network, on its own host.
    """
    if is_private(base_url):
        same_host = urlsplit(url).hostname == urlsplit(base_url).hostname
        return urlsplit(url).scheme in ("http", "https") and (same_host or (is_loopback(url) and is_loopback(base_url)))
    return url.startswith("https://") and not is_private(url)


def _error_object(answer: Answer) -> dict[str, Any] | None:
    try:
        value = json.loads(answer.body)
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else None
