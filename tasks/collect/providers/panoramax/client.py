"""The Panoramax API (STAC) of one instance, or of the federated catalogue of all.

Of `ids` only the form with commas is used: of a JSON array, and of a POST, the server answers the first id alone.
"""

import re
from collections.abc import Sequence
from typing import Any

from tasks.services.errors import HttpResponse, ServiceError, error_by_status, safe_url
from tasks.services.http import Expected, ServiceClient
from tasks.services.network import may_fetch

MAX_LIMIT = 10_000
MAX_IDS = 50  # the API names no limit; addresses stay short enough for every proxy
TILE_ZOOM = 15  # the only one whose tiles show single pictures
_ITEM_TYPES = ("application/geo+json", "application/json")
_TILE_TYPES = ("application/vnd.mapbox-vector-tile", "application/x-protobuf", "application/octet-stream")
_PICTURE_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")  # decoding decides
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


class Panoramax(ServiceClient):
    """Pictures by box or id, and their bytes. Items are the API's own, but that `id` is empty where it is not sound."""

    async def items_in_box(
        self, west: float, south: float, east: float, north: float, limit: int
    ) -> list[dict[str, Any]]:
        """The pictures in a box, those nearest to its middle first. There is no second page: a full one is not all."""
        box = ",".join(f"{edge:.7f}" for edge in (west, south, east, north))
        return await self._search({"bbox": box, "limit": min(limit, MAX_LIMIT)})

    async def items(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The pictures that exist of these, by id: one that is gone or hidden is left out."""
        unique = list(dict.fromkeys(ids))
        if not all(map(is_picture_id, unique)):
            raise self._rejected("the id of a picture is a UUID")
        rows_by_id: dict[str, dict[str, Any]] = {}
        for start in range(0, len(unique), MAX_IDS):
            group = unique[start : start + MAX_IDS]
            # Without a limit there are ten, however many were requested.
            rows = await self._search({"ids": ",".join(group), "limit": len(group)})
            rows_by_id |= {row["id"]: row for row in rows if row["id"] in group}
        return rows_by_id

    async def item(self, picture_id: str) -> dict[str, Any]:
        """One picture, or ServiceError of kind not_found."""
        items = await self.items([picture_id])
        if picture_id not in items:
            raise ServiceError(self._http.service, "not_found", f"no picture has the id {picture_id}")
        return items[picture_id]

    async def tile(self, z: int, x: int, y: int) -> bytes:
        """The vector tile (Mapbox vector tile, version 2) that shows where pictures are; empty where there is none."""
        if not (0 <= z <= TILE_ZOOM and 0 <= x < 1 << z and 0 <= y < 1 << z):
            raise self._rejected(f"no such tile: {z}/{x}/{y}")
        path = f"/map/{z}/{x}/{y}.mvt"
        return (await self._http.get(path, kind="tiles", expected=Expected(_TILE_TYPES, (204,)))).body

    async def fetch(self, url: str) -> bytes:
        """The picture at an asset's address, all of it; not_found where its instance no longer shows it."""
        if not may_fetch(url, self._http.endpoint.base_url):
            raise self._rejected(f"will not fetch from {safe_url(url)}")
        response = await self._http.fetch(
            url, kind="picture", expected=Expected(_PICTURE_TYPES, classify=self._classify_file, check=self._check_end)
        )
        return response.body

    async def _search(self, params: dict[str, str | int]) -> list[dict[str, Any]]:
        value, response = await self._http.request_json(
            "GET", "/search", params=params, kind="search", expected=Expected(_ITEM_TYPES)
        )
        features = self._http.list_under(value, "features", response)
        rows = [dict(feature) if isinstance(feature, dict) else {} for feature in features]
        for row in rows:
            row["id"] = row["id"] if isinstance(row.get("id"), str) and is_picture_id(row["id"]) else ""
        if rows and not any(row["id"] for row in rows):
            raise self._http.bad_response(f"not one of {len(rows)} pictures has an id", response)
        return rows

    def _classify_file(self, response: HttpResponse) -> ServiceError | None:
        """404 in the API's own words is a picture that is gone; a page of a proxy, or 401 and 403, are its host's."""
        is_missing = response.status == 404
        if response.status in (401, 403) or (is_missing and not _says_missing(response)):
            detail = error_by_status(self._http.service, response, self._http.secrets).message
            return ServiceError(self._http.service, "blocked", detail, status=response.status)
        return None

    def _check_end(self, _: Any, response: HttpResponse) -> None:
        # No length comes with it, so a transfer that breaks off may look whole.
        if _ends_early(response.body):
            raise self._http.bad_response("the picture breaks off", response, retryable=True)

    def _rejected(self, what: str) -> ServiceError:
        return ServiceError(self._http.service, "rejected", what)


def is_picture_id(text: str) -> bool:
    """Whether a text can be a picture's id, and nothing that could become part of an address."""
    return _UUID.fullmatch(text) is not None


def _says_missing(response: HttpResponse) -> bool:
    try:
        value = response.json()
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("status_code") == 404


def _ends_early(data: bytes) -> bool:
    """Whether a JPEG has no end behind its pixels; cameras may put other things behind that, and a thumbnail before."""
    at = 2
    while data[at : at + 1] == b"\xff" and at + 4 <= len(data):
        if data[at + 1] == 0xDA:  # the pixels begin, in which no marker's code occurs
            return data.find(b"\xff\xd9", at) < 0
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.startswith(b"\xff\xd8") and at >= len(data)
