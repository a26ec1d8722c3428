"""Looking images up by id, asking whether a picture changed, and vector tiles."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr, ValidationError

from schemas.settings.services import MapillaryEndpoint
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.provider import FetchedBytes
from tasks.services import ServiceError
from tasks.services.transport import Connection

UNKNOWN = "Unsupported get request. Object with ID '{}' does not exist, cannot be loaded due to missing permissions"


async def failure(awaitable) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    return caught.value


def album(server, known: set[str], names_it: bool = True) -> None:
    """Make the scripted server look ids up among `known`, refusing a request as soon as one is unknown."""

    def answer(asked):
        ids = parse_qs(urlsplit(asked.target).query)["ids"][0].split(",")
        missing = [one for one in ids if one not in known]
        if not missing:
            return 200, {one: {"id": one} for one in ids}
        message = UNKNOWN.format(missing[0]) if names_it else "no such object"
        return 400, {"error": {"message": message, "type": "MLYApiException", "code": 100, "error_subcode": 33}}

    server.answers = answer


class TestImagesById:
    async def test_fifty_ids_a_request_each_id_once(self, server):
        ids = [str(10**15 + i) for i in range(120)]
        album(server, set(ids))
        found = await server.client(Mapillary).images_by_id([*ids, ids[0]], ("id",))
        assert list(found) == ids and found[ids[7]] == {"id": ids[7]}
        sizes = [len(parse_qs(urlsplit(a.target).query)["ids"][0].split(",")) for a in server.asked]
        assert sorted(sizes) == [20, 50, 50]

    @pytest.mark.parametrize(("names_it", "most"), [(True, 4), (False, 40)])
    async def test_unknown_ids_are_absent_and_cost_few_requests(self, server, names_it, most):
        ids = [str(100 + i) for i in range(50)]
        gone = {ids[0], ids[23], ids[49]}
        album(server, set(ids) - gone, names_it)
        found = await server.client(Mapillary).images_by_id(ids, ("id",))
        assert set(found) == set(ids) - gone and len(server.asked) <= most

    async def test_none_known_none_asked(self, server):
        album(server, set())
        assert await server.client(Mapillary).images_by_id(["1", "2", "3"]) == {}
        server.asked.clear()
        assert await server.client(Mapillary).images_by_id([]) == {} and server.asked == []

    @pytest.mark.parametrize("ids", [["1", "../2"], ["1,2"], [""], ["１"]])
    async def test_an_id_is_digits(self, server, ids):
        assert (await failure(server.client(Mapillary).images_by_id(ids))).kind == "rejected" and server.asked == []

    @pytest.mark.parametrize("value", [[], {"1": {"id": "2"}}, {"1": 5}])
    async def test_wrong_shapes_are_refused(self, server, value):
        server.says_json(value)
        assert (await failure(server.client(Mapillary).images_by_id(["1"]))).kind == "bad_response"

    async def test_an_outage_is_not_absence(self, server, reply):
        server.says(reply(503))
        assert (await failure(server.client(Mapillary, max_attempts=2).images_by_id(["1", "2"]))).kind == "outage"


class TestFetchIfChanged:
    async def test_unchanged_is_none_and_changed_is_the_new_picture(self, server, reply):
        client = server.client(Mapillary)
        server.says(reply(304, b"", None, {"ETag": '"a"'}))
        assert await client.fetch_if_changed(f"{server.url}/p.jpg?oh=1", '"a"') is None
        assert server.asked[0].headers["if-none-match"] == '"a"'
        assert "authorization" not in server.asked[0].headers
        server.says(reply(200, b"jpeg", "image/jpeg", {"ETag": '"b"'}))
        assert await client.fetch_if_changed(f"{server.url}/p.jpg?oh=1", '"a"') == FetchedBytes(b"jpeg", '"b"')

    async def test_without_a_validator_it_is_a_plain_fetch(self, server, reply):
        for etag in (None, "", "a", '"a"\r\nX: 1'):
            server.says(reply(200, b"jpeg", "image/jpeg"))
            fetched = await server.client(Mapillary).fetch_if_changed(f"{server.url}/p.jpg", etag)
            assert fetched == FetchedBytes(b"jpeg", "") and "if-none-match" not in server.asked[-1].headers

    async def test_unchanged_that_was_not_asked_for_is_refused(self, server, reply):
        server.says(reply(304, b"", None))
        assert (await failure(server.client(Mapillary).fetch(f"{server.url}/p.jpg"))).kind == "blocked"

    async def test_a_validator_that_is_none_is_not_kept(self, server, reply):
        server.says(reply(200, b"jpeg", "image/jpeg", {"ETag": "nonsense"}))
        assert await server.client(Mapillary).fetch_if_changed(f"{server.url}/p.jpg", None) == FetchedBytes(b"jpeg", "")


class TestTile:
    def client(self, server, secret) -> Mapillary:
        endpoint = MapillaryEndpoint(base_url=server.url, tiles_url=f"{server.url}/tiles/2", max_attempts=2)
        return Mapillary(Connection("mapillary", endpoint, SecretStr(secret)), sleep=server.sleep)

    async def test_the_token_goes_in_the_query_and_is_shown_nowhere(self, server, reply, secret):
        server.says(reply(200, b"\x1a\x00", "application/x-protobuf"))
        assert await self.client(server, secret).tile(14, 8345, 5634) == b"\x1a\x00"
        asked = urlsplit(server.asked[0].target)
        assert asked.path == "/tiles/2/14/8345/5634" and parse_qs(asked.query) == {"access_token": [secret]}
        assert "authorization" not in server.asked[0].headers
        body = json.dumps({"error": {"code": 190, "message": f"bad {secret}"}}).encode()
        server.says(reply(401, body))
        error = await failure(self.client(server, secret).tile(0, 0, 0))
        assert error.kind == "auth" and secret not in str(error) and "access_token" not in str(error)

    async def test_nothing_there_is_empty(self, server, reply, secret):
        for nothing in (reply(204, b"", None), reply(200, b"", "application/x-protobuf")):
            server.says(nothing)
            assert await self.client(server, secret).tile(14, 0, 0) == b""

    async def test_a_page_is_no_tile(self, server, reply, secret):
        server.says(reply(200, b"<html>", "text/html"))
        assert (await failure(self.client(server, secret).tile(1, 0, 0))).kind == "outage"

    @pytest.mark.parametrize("tile", [(15, 0, 0), (-1, 0, 0), (1, 2, 0), (1, 0, -1)])
    async def test_tiles_off_the_map_are_not_asked_for(self, server, secret, tile):
        assert (await failure(self.client(server, secret).tile(*tile))).kind == "rejected" and server.asked == []


class TestTilesAddress:
    def test_it_follows_the_service(self):
        assert MapillaryEndpoint().tiles_url == "http://127.0.0.1:8760/mapillary-tiles/maps/vtp/mly1_public/2"
        moved = MapillaryEndpoint(base_url="http://127.0.0.1:9999/mapillary")
        assert moved.tiles_url == "http://127.0.0.1:9999/mapillary-tiles/maps/vtp/mly1_public/2"
        real = MapillaryEndpoint(base_url="https://graph.mapillary.com")
        assert real.tiles_url == "https://tiles.mapillary.com/maps/vtp/mly1_public/2"

    @pytest.mark.parametrize(
        "tiles_url", ["http://tiles.example.org/2", "https://t.example/2?key=1", "nonsense", "http://127.0.0.1:1/t"]
    )
    def test_a_real_token_is_not_sent_in_the_open_or_to_the_offline_world(self, tiles_url):
        with pytest.raises(ValidationError, match=r"tiles_url|must"):
            MapillaryEndpoint(base_url="https://graph.mapillary.com", tiles_url=tiles_url)
