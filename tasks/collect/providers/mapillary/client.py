"""Street-level images from the Mapillary API v4."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from schemas.settings.services import MapillaryEndpoint
from tasks.collect.providers.provider import FetchedBytes
from tasks.services.errors import Classify, HttpResponse, Kind, ServiceError, safe_text, safe_url, said_at
from tasks.services.http import Expected, ServiceClient, key_header
from tasks.services.network import may_fetch
from tasks.services.transport import Connection

MAX_BOX_AREA_DEG2 = 0.01
MAX_LIMIT = 2000  # both the default and the most the service gives; there is no next page
MAX_IDS = 50  # of one request
MAX_TILE_ZOOM = 14
_TILE_TYPES = ("application/x-protobuf", "application/vnd.mapbox-vector-tile", "application/octet-stream")
_PICTURE_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")  # decoding decides
# A validator as RFC 9110 writes it: only such a text is sent back to the service.
_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]*"')

# What the service says of a box that must be split. Our own area check is first, so the second comes only if the
# service lowers its limit.
_BOX_ERRORS: tuple[tuple[str, Kind], ...] = (
    ("reduce the amount of data", "too_dense"),
    ("area is too large", "too_big"),
)

IMAGE_FIELDS = (
    *("id", "sequence", "captured_at", "geometry", "computed_geometry", "compass_angle", "computed_compass_angle"),
    *("camera_type", "is_pano", "creator", "make", "model", "width", "height"),
    *("thumb_1024_url", "thumb_2048_url", "thumb_original_url"),
)


class Mapillary(ServiceClient):
    """Images by box or id, and their pixels. Rows are the API's own: an absent value is an absent key, ids are text."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        # In the header, so that the token stands in no address that could be logged.
        headers = key_header(connection, scheme="OAuth ")
        tiles_url = getattr(connection.endpoint, "tiles_url", None)
        super().__init__(connection, headers, configured=(tiles_url,), **http_options)

    async def images_in_box(
        self, west: float, south: float, east: float, north: float, fields: Sequence[str] = IMAGE_FIELDS
    ) -> list[dict[str, Any]]:
        """The images in a box, at most MAX_LIMIT.

        A large box silently returns fewer than there are, so a caller that wants all of them splits the box until the
        answer is well under the limit. Raises ServiceError of kind too_big or too_dense if the box must be split. A
        record without a sound id has an empty one: it spoils no other.
        """
        area = (east - west) * (north - south)
        if not (west < east and south < north):
            raise ServiceError("mapillary", "rejected", f"not a box: {west},{south},{east},{north}")
        if area > MAX_BOX_AREA_DEG2:
            raise ServiceError("mapillary", "too_big", f"box of {area:.4f} square degrees, {MAX_BOX_AREA_DEG2} allowed")
        params: dict[str, str | int] = {
            "bbox": ",".join(f"{edge:.7f}" for edge in (west, south, east, north)),
            "fields": ",".join(fields),
            "limit": MAX_LIMIT,
        }
        value, response = await self._json(
            "/images", params, partial(box_error, secrets=self._http.secrets), kind="search"
        )
        rows = [row_of(row) for row in self._http.list_under(value, "data", response)]
        if rows and not any(row["id"] for row in rows):
            raise self._http.bad_response(f"not one of {len(rows)} images has an id", response)
        paging = value.get("paging")
        if isinstance(paging, dict) and paging.get("next"):
            # There is no such link today. If there is one, this is not all, and smaller boxes are.
            raise ServiceError(
                "mapillary", "too_dense", f"{response.url} has more than one page", status=response.status
            )
        return rows

    async def image(self, image_id: str, fields: Sequence[str] = IMAGE_FIELDS) -> dict[str, Any]:
        """One image, or ServiceError of kind not_found."""
        if not is_image_id(image_id):
            raise ServiceError("mapillary", "rejected", "an image id is a string of digits")
        params = {"fields": ",".join(fields)}
        value, response = await self._json(f"/{image_id}", params, partial(graph_error, secrets=self._http.secrets))
        row = row_of(value)
        if not row["id"]:
            raise self._http.bad_response("an image without an id", response)
        return row

    async def images_by_id(self, ids: Sequence[str], fields: Sequence[str] = IMAGE_FIELDS) -> dict[str, dict[str, Any]]:
        """The images that exist of these, by id: an id that is not there is unknown to the service now."""
        if not all(is_image_id(image_id) for image_id in ids):
            raise ServiceError("mapillary", "rejected", "an image id is a string of digits")
        unique = list(dict.fromkeys(ids))
        groups = [unique[i : i + MAX_IDS] for i in range(0, len(unique), MAX_IDS)]
        images: dict[str, dict[str, Any]] = {}
        for rows in await asyncio.gather(*(self._known(group, fields) for group in groups)):
            images |= rows
        return images

    async def _known(self, ids: list[str], fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not ids:
            return {}
        named: list[str] = []

        def classify(response: HttpResponse) -> ServiceError | None:
            message = str((error_object(response) or {}).get("message", ""))
            named[:] = [image_id for image_id in re.findall(r"\d+", message) if image_id in ids]
            return graph_error(response, self._http.secrets)

        params = {"ids": ",".join(ids), "fields": ",".join(fields)}
        try:
            value, response = await self._json("/", params, classify)
        except ServiceError as error:
            if error.kind != "not_found":
                raise
            # One unknown id spoils the whole request. The message usually names it; if not, halves find it.
            if named and len(named) < len(ids):
                return await self._known([image_id for image_id in ids if image_id not in named], fields)
            half = len(ids) // 2
            return {} if half == 0 else await self._known(ids[:half], fields) | await self._known(ids[half:], fields)
        if not isinstance(value, dict):
            raise self._http.bad_response("not an object of images by id", response)
        rows = {key: row_of(row) for key, row in value.items() if key in ids}
        if any(key != row["id"] for key, row in rows.items()):
            raise self._http.bad_response("an image under another image's id", response)
        # The service says which ids it does not know; an answer without any of them says nothing about them.
        if not rows and len(ids) > 1:
            raise self._http.bad_response(f"an answer without any of the {len(ids)} images requested", response)
        return rows or await self._alone(ids[0], fields)

    async def _alone(self, image_id: str, fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        try:
            return {image_id: await self.image(image_id, fields)}
        except ServiceError as error:
            if error.kind != "not_found":
                raise
            return {}

    async def _json(
        self, path: str, params: Mapping[str, str | int], classify: Classify, kind: str = ""
    ) -> tuple[Any, HttpResponse]:
        """The JSON value answered. An error object is an error under any status, and is tried again like one."""

        def check(value: Any, response: HttpResponse) -> None:
            if error_in(value) is not None:
                unknown = self._http.bad_response("an error of no known kind", response, retryable=True)
                raise classify(response) or unknown

        return await self._http.request_json(
            "GET", path, params=params, kind=kind, expected=Expected(classify=classify, check=check)
        )

    async def fetch(self, url: str) -> bytes:
        """The picture at a thumb URL, or ServiceError of kind expired: then ask for the image's URL again."""
        fetched = await self.fetch_if_changed(url, None)
        assert fetched is not None, "nothing was queried on condition"
        return fetched.data

    async def fetch_if_changed(self, url: str, etag: str | None) -> FetchedBytes | None:
        """The picture at a thumb URL with its validator, or None if it still is the one `etag` was given for."""
        if not may_fetch(url, self._http.endpoint.base_url):
            raise ServiceError("mapillary", "rejected", f"will not fetch from {safe_url(url)}")
        conditional = bool(etag and _ETAG.fullmatch(etag))
        response = await self._http.fetch(
            url,
            headers={"If-None-Match": etag} if etag and conditional else None,
            kind="picture",
            resume=True,
            expected=Expected(_PICTURE_TYPES, (304,) if conditional else (), self._classify_file),
        )
        if response.status == 304:
            return None
        new_etag = response.headers.get("etag", "").strip()
        return FetchedBytes(response.body, new_etag if _ETAG.fullmatch(new_etag) else "")

    async def tile(self, z: int, x: int, y: int) -> bytes:
        """The vector tile (Mapbox vector tile, version 2) that shows where imagery is; empty where there is none."""
        if not (0 <= z <= MAX_TILE_ZOOM and 0 <= x < 1 << z and 0 <= y < 1 << z):
            raise ServiceError("mapillary", "rejected", f"no such tile: {z}/{x}/{y}")
        endpoint = self._http.endpoint
        if not isinstance(endpoint, MapillaryEndpoint):
            raise ServiceError("mapillary", "rejected", "the endpoint has no tiles_url")
        # The tile host takes the token in the query only; `safe_url` shows none of it.
        token = {"access_token": self._http.secrets[0]} if self._http.secrets else {}
        response = await self._http.fetch(
            f"{endpoint.tiles_url}/{z}/{x}/{y}",
            token,
            kind="tiles",
            expected=Expected(_TILE_TYPES, (204,), partial(graph_error, secrets=self._http.secrets)),
        )
        return response.body

    def _classify_file(self, response: HttpResponse) -> ServiceError | None:
        if response.status in (401, 403, 410):
            detail = f"the signed address is past its time: {response.url}"
            return ServiceError("mapillary", "expired", detail, status=response.status)
        return None


def graph_error(response: HttpResponse, secrets: tuple[str, ...]) -> ServiceError | None:
    """The error that a response's body names; None where it speaks of none that is known."""
    error = error_object(response)
    if error is None:
        return None
    match error.get("code"), error.get("error_subcode"):
        case 190, _:
            return _of(response, error, "auth", False, secrets)
        case 4, _:
            return _of(response, error, "rate_limit", True, secrets)
        case 100, 33:
            return _of(response, error, "not_found", False, secrets)
        case 100, _:
            return _of(response, error, "rejected", False, secrets)
        case 2, _:
            return _of(response, error, "outage", True, secrets)
    return _of(response, error, "outage", True, secrets) if error.get("is_transient") is True else None


def box_error(response: HttpResponse, secrets: tuple[str, ...]) -> ServiceError | None:
    """The same for the search of a box, which may be one that must be split."""
    known = graph_error(response, secrets)
    error = error_object(response)
    if known is not None or error is None:
        return known
    # By their words: code 1 is also any unknown error, and others come without a code. Taking an outage for a box
    # that is too full would make hundreds of requests of one.
    message = str(error.get("message", "")).lower()
    kind = next((kind for words, kind in _BOX_ERRORS if words in message), None)
    return None if kind is None else _of(response, error, kind, False, secrets)


def _of(
    response: HttpResponse, error: dict[str, Any], kind: Kind, retryable: bool, secrets: tuple[str, ...]
) -> ServiceError:
    detail = said_at(safe_text(str(error.get("message", "")), secrets), response.url)
    return ServiceError("mapillary", kind, detail, status=response.status, retryable=retryable)


def error_object(response: HttpResponse) -> dict[str, Any] | None:
    """The error that a body is, if it is one."""
    try:
        return error_in(response.json())
    except ValueError:
        return None


def error_in(value: Any) -> dict[str, Any] | None:
    """The error that a JSON value holds."""
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else None


def row_of(value: Any) -> dict[str, Any]:
    """A record with its id as text; an empty one where it has none that is sound."""
    row: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    image_id = row.get("id")
    if isinstance(image_id, int) and not isinstance(image_id, bool):
        # JSON integers are exact in Python; a float has lost digits already.
        image_id = str(image_id)
    row["id"] = image_id if isinstance(image_id, str) and is_image_id(image_id) else ""
    if isinstance(row.get("sequence"), int):
        row["sequence"] = str(row["sequence"])
    return row


def is_image_id(text: str) -> bool:
    """Whether a text can be an image's id: digits, and nothing that could become part of an address."""
    return text.isascii() and text.isdigit()
