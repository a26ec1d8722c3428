"""The STAC API of the scene archive, at `/stac/api/stac/v1`: landing page, collection, items, search with paging."""

import json
from typing import Any
from urllib.parse import urlencode

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.scenes.orbit import scene_with_id
from infra.offline.services.stac_hosts import CAME_BY_REAL_HOST
from infra.offline.services.stac_items import COLLECTION, GEOJSON, ServiceUrls, collection, item, link
from infra.offline.services.stac_search import BadRequest, Search, find_scenes, from_query, read_search
from infra.offline.world import World

_ROOT = "/api/stac/v1"
_CONFORMS = [
    "https://api.stacspec.org/v1.0.0/core",
    "https://api.stacspec.org/v1.0.0/collections",
    "https://api.stacspec.org/v1.0.0/ogcapi-features",
    "https://api.stacspec.org/v1.0.0/item-search",
    "https://api.stacspec.org/v1.0.0/item-search#query",
    "https://api.stacspec.org/v1.0.0/item-search#sort",
    "https://api.stacspec.org/v1.0.0-rc.2/item-search#filter",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/geojson",
    "http://www.opengis.net/spec/ogcapi-features-3/1.0/conf/filter",
    "http://www.opengis.net/spec/cql2/1.0/conf/cql2-json",
    "http://www.opengis.net/spec/cql2/1.0/conf/basic-cql2",
]


def _places(request: Request) -> ServiceUrls:
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return ServiceUrls(origin, bool(request.scope.get(CAME_BY_REAL_HOST)))


class Stac:
    """The API over a world's scenes."""

    def __init__(self, world: World) -> None:
        self.world = world

    def routes(self) -> list[Route]:
        """The routes to mount."""
        one = f"{_ROOT}/collections/{{collection}}"
        return [
            Route(_ROOT, self._landing),
            Route(f"{_ROOT}/", self._landing),
            Route(f"{_ROOT}/conformance", self._conformance),
            Route(f"{_ROOT}/collections", self._collections),
            Route(one, self._collection),
            Route(f"{one}/items", self._items),
            Route(f"{one}/items/{{item}}", self._item),
            Route(f"{_ROOT}/search", self._search, methods=["GET", "POST"]),
        ]

    async def _landing(self, request: Request) -> Response:
        here = _places(request).stac
        links: list[dict[str, Any]] = [
            link("self", f"{here}/"),
            link("root", f"{here}/"),
            link("data", f"{here}/collections"),
            link("conformance", f"{here}/conformance"),
            link("search", f"{here}/search", GEOJSON, method="GET"),
            link("search", f"{here}/search", GEOJSON, method="POST"),
            link("child", f"{here}/collections/{COLLECTION}"),
        ]
        return JSONResponse(
            {
                "type": "Catalog",
                "id": "geofix-offline",
                "title": "Scenes of the offline world",
                "description": "A STAC API over painted Sentinel-2 scenes.",
                "stac_version": "1.0.0",
                "conformsTo": _CONFORMS,
                "links": links,
            }
        )

    async def _conformance(self, request: Request) -> Response:
        return JSONResponse({"conformsTo": _CONFORMS})

    async def _collections(self, request: Request) -> Response:
        places = _places(request)
        links = [
            link("root", f"{places.stac}/"),
            link("self", f"{places.stac}/collections"),
        ]
        return JSONResponse({"collections": [collection(places)], "links": links})

    async def _collection(self, request: Request) -> Response:
        if request.path_params["collection"] != COLLECTION:
            return _missing(f"Collection {request.path_params['collection']} does not exist.")
        return JSONResponse(collection(_places(request)))

    async def _item(self, request: Request) -> Response:
        scene = scene_with_id(request.path_params["item"])
        if request.path_params["collection"] != COLLECTION or scene is None:
            return _missing("Item does not exist.")
        return JSONResponse(item(self.world.seed, scene, _places(request)), media_type=GEOJSON)

    async def _items(self, request: Request) -> Response:
        if request.path_params["collection"] != COLLECTION:
            return _missing(f"Collection {request.path_params['collection']} does not exist.")
        here = f"{_places(request).stac}/collections/{COLLECTION}/items"

        def body() -> Any:
            return {**from_query(request.query_params), "collections": [COLLECTION]}

        return await self._page(request, body, here)

    async def _search(self, request: Request) -> Response:
        here = f"{_places(request).stac}/search"
        if request.method == "GET":
            return await self._page(request, lambda: from_query(request.query_params), here)
        raw = await request.body()

        def body() -> Any:
            try:
                return json.loads(raw)
            except ValueError as error:
                raise BadRequest("the body is not JSON") from error

        return await self._page(request, body, here)

    async def _page(self, request: Request, body: Any, here: str) -> Response:
        try:
            search = read_search(body())
            # A search computes: in a thread, so that other requests are answered meanwhile.
            text = await anyio.to_thread.run_sync(self._answer, request, search, here)
        except BadRequest as error:
            return PlainTextResponse(str(error), 400)
        return Response(text, media_type=GEOJSON)

    def _answer(self, request: Request, search: Search, here: str) -> str:
        places = _places(request)
        scenes, more = find_scenes(self.world.seed, search)
        links: list[dict[str, Any]] = [
            link("root", f"{places.stac}/"),
            link("self", here, GEOJSON),
        ]
        if more:
            token = f"next:{COLLECTION}:{scenes[-1].id}"
            following: dict[str, Any] = {"method": "POST", "href": here, "body": {**search.asked, "token": token}}
            if request.method == "GET":
                following = {"method": "GET", "href": f"{here}?{urlencode({**request.query_params, 'token': token})}"}
            links.append({"rel": "next", "type": GEOJSON, **following})
        features = [item(self.world.seed, scene, places) for scene in scenes]
        return json.dumps({"type": "FeatureCollection", "features": features, "links": links})


def _missing(detail: str) -> Response:
    return JSONResponse({"code": "NotFoundError", "description": detail}, 404)


def stac_application(world: World) -> Starlette:
    """What is mounted at `/stac`."""
    return Starlette(routes=Stac(world).routes())
