"""Each service's client against recorded shapes of good answers and of every documented error."""

import json
from typing import Any

import pytest

from schemas.messages import ToolCall
from schemas.settings.services import Price
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.services import Address, Chat, Geocoder, Search, ServiceError
from tasks.services.network import may_fetch

BOX = (2.30, 48.80, 2.35, 48.85)


async def failure(awaitable) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    return caught.value


TOO_BIG = "Bounding box area is too large. Maximum allowed area is 0.010 square degrees, but got 0.022"
TOO_DENSE = "Please reduce the amount of data you're asking for, then retry your request"


def mapillary_error(code=None, kind="MLYApiException", **more):
    error = {"message": "says the service", "type": kind, "code": code, "fbtrace_id": "A1", **more}
    return {"error": {name: value for name, value in error.items() if value is not None}}


class TestMapillary:
    async def test_box_query_is_what_the_protocol_wants(self, server, secret):
        server.says_json({"data": [{"id": "498763468214164", "is_pano": True}]})
        rows = await server.client(Mapillary).images_in_box(*BOX, fields=("id", "is_pano"))
        assert rows == [{"id": "498763468214164", "is_pano": True}]
        asked = server.asked[0]
        box = "2.3000000%2C48.8000000%2C2.3500000%2C48.8500000"
        assert asked.target == f"/images?bbox={box}&fields=id%2Cis_pano&limit=2000"
        assert asked.headers["authorization"] == f"OAuth {secret}" and secret not in asked.target

    async def test_ids_stay_exact_text(self, server):
        server.says_json({"data": [{"id": 9007199254740993, "sequence": 12345678901234567890}]})
        (row,) = await server.client(Mapillary).images_in_box(*BOX)
        assert row == {"id": "9007199254740993", "sequence": "12345678901234567890"}

    @pytest.mark.parametrize("rows", [{"data": [{"id": 9.007199254740993e15}]}, {"data": [{}]}, {"data": 1}, [], {}])
    async def test_rows_without_a_sound_id_are_refused(self, server, rows):
        server.says_json(rows)
        assert (await failure(server.client(Mapillary).images_in_box(*BOX))).kind == "bad_response"

    @pytest.mark.parametrize(
        ("status", "body", "kind", "requests"),
        [
            (500, mapillary_error(190), "auth", 1),
            (401, mapillary_error(190, "OAuthException"), "auth", 1),
            (400, mapillary_error(190, "OAuthException"), "auth", 1),
            (400, mapillary_error(100, error_subcode=33), "not_found", 1),
            (400, mapillary_error(100), "rejected", 1),
            (403, mapillary_error(4, is_transient=True), "rate_limit", 3),
            (403, mapillary_error(4), "rate_limit", 3),
            (500, mapillary_error(2), "outage", 3),
            (500, mapillary_error(777, is_transient=True), "outage", 3),
            (500, mapillary_error(None, None, message=TOO_BIG), "too_big", 1),
            (500, mapillary_error(1, message=TOO_DENSE), "too_dense", 1),
            (500, mapillary_error(None, None), "outage", 3),  # of which we know nothing: not a box to be split
            (500, mapillary_error(1, message="An unknown error occurred"), "outage", 3),
            (500, mapillary_error(1, message=None), "outage", 3),
            (500, {"odd": 1}, "outage", 3),
        ],
    )
    async def test_every_documented_error(self, server, status, body, kind, requests):
        server.says_json(body, status)
        error = await failure(server.client(Mapillary, max_attempts=3, limit_patience_s=0).images_in_box(*BOX))
        assert (error.kind, error.status, len(server.asked)) == (kind, status, requests)

    async def test_a_rate_limit_that_passes_is_not_an_error(self, server, reply):
        limited = json.dumps(mapillary_error(4, is_transient=True)).encode()
        server.says(reply(403, limited), reply(body=b'{"data": []}'))
        assert await server.client(Mapillary).images_in_box(*BOX) == []

    async def test_a_box_that_is_too_big_is_not_even_asked_for(self, server):
        server.says_json({"data": []})
        client = server.client(Mapillary)
        assert (await failure(client.images_in_box(0, 0, 0.2, 0.2))).kind == "too_big"
        assert (await failure(client.images_in_box(1, 0, 0, 1))).kind == "rejected"
        assert await client.images_in_box(0, 0, 1, 0.009) == []  # the limit is on area, not on a side
        assert len(server.asked) == 1

    async def test_unknown_image_is_not_found_although_the_status_is_400(self, server):
        server.says_json(mapillary_error(100, error_subcode=33), 400)
        assert (await failure(server.client(Mapillary).image("123"))).kind == "not_found"

    @pytest.mark.parametrize("image_id", ["", "../token", "1?fields=x", "１２３"])
    async def test_an_id_cannot_become_a_path(self, server, image_id):
        assert (await failure(server.client(Mapillary).image(image_id))).kind == "rejected"
        assert server.asked == []

    async def test_pixels_come_without_our_token(self, server, reply):
        server.says(reply(body=b"\xff\xd8jpeg", content_type="image/jpeg"))
        assert await server.client(Mapillary).fetch(f"{server.url}/t.jpg?oh=1&oe=2") == b"\xff\xd8jpeg"
        assert "authorization" not in server.asked[0].headers

    async def test_an_expired_url_has_its_own_kind(self, server, reply):
        server.says(reply(403, b"URL signature expired", "text/plain"))
        error = await failure(server.client(Mapillary).fetch(f"{server.url}/t.jpg?oh=SIGNED&oe=2"))
        assert error.kind == "expired" and not error.retryable and "SIGNED" not in str(error)
        assert len(server.asked) == 1

    async def test_a_page_instead_of_a_picture_is_refused(self, server, reply):
        server.says(reply(body=b"<html>", content_type="text/html"))
        assert (await failure(server.client(Mapillary, max_attempts=1).fetch(f"{server.url}/t"))).kind == "outage"

    async def test_a_picture_or_json_under_another_name_is_taken(self, server, reply):
        server.says(reply(body=b"JPEG", content_type="application/octet-stream"))
        assert await server.client(Mapillary).fetch(f"{server.url}/t") == b"JPEG"
        server.says(reply(body=b'{"id": "7"}', content_type="text/javascript; charset=UTF-8"))
        assert await server.client(Mapillary).image("7") == {"id": "7"}

    async def test_the_cause_comes_before_the_long_address(self, server):
        server.says_json(mapillary_error(100), 400)
        error = await failure(server.client(Mapillary).images_in_box(*BOX))
        assert str(error).startswith("mapillary: rejected (HTTP 400): says the service (http://")
        assert "fields=" not in str(error)

    @pytest.mark.parametrize(
        "url", ["file:///etc/passwd", "http://169.254.169.254/latest", "ftp://x/y", "https://x.org/"]
    )
    async def test_pixels_are_fetched_only_from_where_the_service_lives(self, server, url):
        assert (await failure(server.client(Mapillary).fetch(url))).kind == "rejected"


PARIS = {
    "lat": "48.8566",
    "lon": "2.3522",
    "name": "Paris",
    "display_name": "Paris, Île-de-France, France",
    "importance": 0.9,
    "address": {"city": "Paris", "state": "Île-de-France", "country": "France", "country_code": "fr"},
}


@pytest.mark.parametrize(
    ("base_url", "url", "allowed"),
    [
        ("https://graph.mapillary.com", "https://scontent.xx.fbcdn.net/m1/v?oe=1", True),
        ("https://graph.mapillary.com", "http://scontent.xx.fbcdn.net/m1/v", False),
        ("https://graph.mapillary.com", "https://127.0.0.1/x", False),
        ("https://graph.mapillary.com", "https://10.0.0.7/x", False),
        ("https://graph.mapillary.com", "https://metadata.internal/x", False),
        ("http://127.0.0.1:8760/mapillary", "http://localhost:8760/cdn/x", True),
        ("http://offline:8760/mapillary", "http://offline:8760/cdn/x", True),
        ("http://offline:8760/mapillary", "http://other:8760/cdn/x", False),
        ("http://offline:8760/mapillary", "file://offline/x", False),
    ],
)
def test_where_pictures_may_come_from(base_url, url, allowed):
    assert may_fetch(url, base_url) == allowed


class TestGeocoder:
    async def test_candidates_come_ranked_and_typed(self, server):
        server.says_json([PARIS, {**PARIS, "address": {"town": "Paris", "county": "Lamar"}}])
        first, second = await server.client(Geocoder, "geocoder").search("Paris")
        assert (first.lat, first.lon, first.name, first.country_code) == (48.8566, 2.3522, "Paris", "FR")
        assert (second.city, second.region, second.country) == ("Paris", "Lamar", "")
        assert "q=Paris" in server.asked[0].target and "format=jsonv2" in server.asked[0].target

    async def test_nothing_found_is_an_empty_list_and_an_outage_is_not(self, server, reply):
        server.says_json([])
        assert await server.client(Geocoder, "geocoder").search("Nowhere") == []
        server.says(reply(503))
        assert (await failure(server.client(Geocoder, "geocoder", max_attempts=2).search("x"))).kind == "outage"

    async def test_reverse(self, server):
        server.says_json(PARIS)
        address = await server.client(Geocoder, "geocoder").reverse(48.8566, 2.3522)
        assert address == Address("France", "FR", "Île-de-France", "Paris")
        server.says_json({"error": "Unable to geocode"})
        assert await server.client(Geocoder, "geocoder").reverse(0, 0) is None

    @pytest.mark.parametrize(
        ("parts", "region", "city"),
        [
            ({"suburb": "Altona", "city": "Hamburg", "ISO3166-2-lvl4": "DE-HH"}, "Hamburg", "Hamburg"),
            ({"quarter": "Nishi", "city": "Shinjuku", "ISO3166-2-lvl4": "JP-13"}, "Tokyo", "Shinjuku"),
            ({"town": "Bath", "county": "Somerset", "ISO3166-2-lvl4": "XX-99"}, "Somerset", "Bath"),
            ({"village": "Loami", "county": "Sangamon County", "state": "Illinois"}, "Illinois", "Loami"),
        ],
    )
    async def test_a_city_state_has_its_region_by_its_code(self, server, parts, region, city):
        server.says_json({**PARIS, "address": parts})
        address = await server.client(Geocoder, "geocoder").reverse(53.5, 9.9)
        assert (address.region, address.city) == (region, city)
        assert "zoom=18" in server.asked[0].target

    async def test_a_house_is_called_by_its_street(self, server):
        parts = {"house_number": "12", "road": "Rue Oberkampf", "city": "Paris"}
        server.says_json([{**PARIS, "name": "", "display_name": "12, Rue Oberkampf, Paris", "address": parts}])
        [house] = await server.client(Geocoder, "geocoder").search("12 Rue Oberkampf")
        assert house.name == "Rue Oberkampf 12"

    @pytest.mark.parametrize(
        "bad", [{}, [1], [{"lat": "x"}], [{"lat": "91", "lon": "0", "address": {}}], [{"lat": "1", "lon": "nan"}]]
    )
    async def test_wrong_shapes_are_refused(self, server, bad):
        server.says_json(bad)
        assert (await failure(server.client(Geocoder, "geocoder").search("x"))).kind == "bad_response"


class TestSearch:
    async def test_results(self, server, secret):
        server.says_json({"results": [{"title": "T", "url": "https://x", "content": "C", "score": 0.5}, {}]})
        first, second = await server.client(Search, "search").search("yellow bus", max_results=2)
        assert (first.title, first.score, second.content) == ("T", 0.5, "")
        assert server.asked[0].json() == {"query": "yellow bus", "max_results": 2}
        assert server.asked[0].headers["authorization"] == f"Bearer {secret}"

    async def test_a_used_up_quota_is_not_retried(self, server, reply):
        server.says(reply(432))
        error = await failure(server.client(Search, "search").search("x"))
        assert (error.kind, error.retryable, len(server.asked)) == ("quota", False, 1)

    @pytest.mark.parametrize("bad", [{}, [], {"results": [1]}, {"results": None}])
    async def test_wrong_shapes_are_refused(self, server, bad):
        server.says_json(bad)
        assert (await failure(server.client(Search, "search").search("x"))).kind == "bad_response"


class TestChat:
    def completion(self, **message):
        return {
            "model": "m-2026",
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
        }

    async def test_text_with_usage_and_cost(self, server):
        server.says_json(self.completion(content="hello"))
        client = server.client(Chat, "chat", prices={"m": Price(prompt=2, completion=10)})
        reply = await client.complete("m", [{"role": "user", "content": "hi"}], seed=3, max_tokens=9)
        assert (reply.text, reply.finish_reason, reply.model) == ("hello", "stop", "m-2026")
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.requests) == (1000, 100, 1)
        assert reply.usage.cost_usd == pytest.approx(0.003)
        body = server.asked[0].json()
        assert body["temperature"] == 0 and body["seed"] == 3 and body["max_tokens"] == 9
        assert "tools" not in body and "response_format" not in body

    async def test_requests_and_replies_are_those_of_the_official_client(self, server, secret):
        """It takes 4.5 ms of CPU a request, so ours is written without it, and held to it here."""
        import openai

        call = {"id": "c", "type": "function", "function": {"name": "zoom", "arguments": '{"a": 1}'}}
        message = {"content": "héllo", "tool_calls": [call], "reasoning_content": "why"}
        server.says_json(self.completion(**message))
        tool = {"type": "function", "function": {"name": "zoom", "parameters": {"type": "object", "properties": {}}}}
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        messages: Any = [
            {"role": "system", "content": "naïve ✓"},
            {"role": "user", "content": [picture, {"type": "text", "text": "Where?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
        given: Any = {"tools": [tool], "temperature": 0.5, "seed": 3, "max_tokens": 9, "n": 2, "tool_choice": "auto"}
        reply = await server.client(Chat, "chat").complete("m", messages, extra_body={"top_k": 5}, **given)
        async with openai.AsyncOpenAI(api_key=secret, base_url=server.url, max_retries=0) as official:
            read = await official.chat.completions.create(
                model="m", messages=messages, extra_body={"top_k": 5}, **given
            )
        ours, theirs = server.asked
        assert (ours.method, ours.target) == (theirs.method, theirs.target)
        assert ours.json() == theirs.json() and ours.headers["content-type"] == theirs.headers["content-type"]
        assert ours.headers["authorization"] == theirs.headers["authorization"] == f"Bearer {secret}"
        assert ours.headers["user-agent"].startswith("geofix")
        told: Any = read.choices[0].message
        assert (reply.text, reply.reasoning) == (told.content, told.reasoning_content)
        assert reply.tool_calls[0].arguments == told.tool_calls[0].function.arguments
        assert reply.finish_reason == read.choices[0].finish_reason and reply.model == read.model
        assert read.usage is not None and reply.usage.prompt_tokens == read.usage.prompt_tokens

    async def test_requests_count_failed_attempts_too(self, server, reply):
        server.says(reply(500), reply(500), reply(body=json.dumps(self.completion(content="x")).encode()))
        assert (await server.client(Chat, "chat").complete("m", [])).usage.requests == 3

    async def test_tool_calls_keep_their_raw_arguments(self, server):
        call = {"id": "c1", "type": "function", "function": {"name": "search_web", "arguments": '{"query": "x'}}
        server.says_json(self.completion(content=None, tool_calls=[call]))
        reply = await server.client(Chat, "chat").complete("m", [], tools=[{"type": "function"}])
        assert reply.text == "" and reply.tool_calls == (ToolCall("c1", "search_web", '{"query": "x'),)
        assert reply.message() == {"role": "assistant", "content": "", "tool_calls": [call]}

    async def test_arguments_as_an_object_are_taken(self, server):
        server.says_json(self.completion(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}]))
        (call,) = (await server.client(Chat, "chat").complete("m", [])).tool_calls
        assert (call.id, call.arguments) == ("call_0", '{"a": 1}')

    @pytest.mark.parametrize(
        "bad",
        [{}, [], {"choices": []}, {"choices": [{}]}, {"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}],
    )
    async def test_wrong_shapes_are_refused(self, server, bad):
        server.says_json(bad)
        assert (await failure(server.client(Chat, "chat").complete("m", []))).kind == "bad_response"

    async def test_a_used_up_quota_is_told_from_a_rate_limit_by_its_code(self, server):
        server.says_json({"error": {"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}}, 429)
        error = await failure(server.client(Chat, "chat").complete("m", []))
        assert (error.kind, error.retryable, len(server.asked)) == ("quota", False, 1)

    async def test_models(self, server):
        server.says_json({"data": [{"id": "observer"}, {"id": "planner"}]})
        assert await server.client(Chat, "chat").models() == ["observer", "planner"]
