"""Points of interest and pictures of the ground, over AMap's web service protocol (Thinking with Map, 3.1).

Numbers come as text, `location` is "lon,lat", what is missing is an empty list, and trouble is told in a 200 as
`status` "0" with an `infocode`.
"""

import math
from dataclasses import dataclass
from typing import Any

from tasks.services.errors import HttpResponse, Kind, ServiceError, safe_url
from tasks.services.http import ServiceClient

PICTURE_PX = 512
# infocode: what is wrong with the key, with the request, with the quota; every other one is an outage.
_KINDS: dict[str, Kind] = {
    "10001": "auth",
    "10002": "auth",
    "20000": "rejected",
    "20001": "rejected",
    "10003": "quota",
    "10044": "quota",
}


@dataclass(frozen=True)
class Poi:
    """A point of interest; what the service does not know is an empty string."""

    id: str
    name: str
    kind: str
    address: str
    district: str
    lat: float
    lon: float


class Maps(ServiceClient):
    """A map service."""

    async def tips(self, text: str, limit: int = 10) -> list[Poi]:
        """Points of interest whose names begin like the text."""
        return await self._rows("/v3/assistant/inputtips", {"keywords": text}, "tips", limit)

    async def find(self, keyword: str, city: str = "", limit: int = 10) -> list[Poi]:
        """Points of interest by name or kind, best first."""
        asked = {"keywords": keyword, "offset": min(25, max(1, limit))} | ({"city": city} if city else {})
        return await self._rows("/v3/place/text", asked, "pois", limit)

    async def detail(self, poi_id: str) -> Poi | None:
        """One point of interest, or None for an unknown id."""
        found = await self._rows("/v3/place/detail", {"id": poi_id}, "pois", 1)
        return found[0] if found else None

    async def picture(self, lat: float, lon: float, zoom: int, style: str) -> bytes:
        """A picture of the ground around a point, `roadmap` or `satellite`: bytes as they came, not yet decoded."""
        size = f"{PICTURE_PX}*{PICTURE_PX}"
        params: dict[str, str | int] = {
            "location": f"{lon:.6f},{lat:.6f}",
            "zoom": zoom,
            "size": size,
            "maptype": style,
            "key": "".join(self._http.secrets),
        }
        accepted = ("image/png", "image/jpeg", "application/json")
        response = await self._http.request("GET", "/v3/staticmap", params=params, accept=accepted)
        if response.content_type.startswith("image/"):
            return response.body
        try:
            trouble = self._trouble(response.json(), response)
        except ValueError:
            trouble = None
        raise trouble or self._http.bad_response("not a picture", response)

    async def _rows(self, path: str, asked: dict[str, Any], name: str, limit: int) -> list[Poi]:
        value, response = await self._http.request_json(
            "GET", path, params={**asked, "key": "".join(self._http.secrets)}
        )
        trouble = self._trouble(value, response)
        if trouble is not None:
            raise trouble
        rows = value.get(name)
        if not isinstance(rows, list):
            raise self._http.bad_response(f"no list under '{name}'", response)
        return [poi for row in rows if (poi := _poi(row)) is not None][:limit]

    def _trouble(self, value: Any, response: HttpResponse) -> ServiceError | None:
        if not isinstance(value, dict):
            return self._http.bad_response("not an object", response)
        if str(value.get("status")) == "1":
            return None
        kind = _KINDS.get(str(value.get("infocode")), "outage")
        return ServiceError(
            "maps", kind, f"infocode {str(value.get('infocode'))[:20]}: {safe_url(response.url)}", status=200
        )


def _poi(row: Any) -> Poi | None:
    """A row as a point of interest; None for one without an id, a name or a point, such as a bus line's."""
    if not isinstance(row, dict):
        return None
    lon, _, lat = _text(row.get("location")).partition(",")
    try:
        point = float(lat), float(lon)
    except ValueError:
        return None
    district = _text(row.get("district")) or ", ".join(
        part for part in (_text(row.get(key)) for key in ("cityname", "pname", "country")) if part
    )
    poi = Poi(
        _text(row.get("id")),
        _text(row.get("name")),
        _text(row.get("type")),
        _text(row.get("address")),
        district,
        *point,
    )
    on_earth = all(math.isfinite(side) for side in point) and abs(point[0]) <= 90 and abs(point[1]) <= 180
    return poi if poi.id and poi.name and on_earth else None


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
