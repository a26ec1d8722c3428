"""Answers that look good and are not: errors under 200, records without a sound id, a page of several."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from tasks.collect.providers.mapillary.client import Mapillary
from tasks.services import ServiceError

BOX = (2.3, 48.8, 2.35, 48.85)
ASKS = (
    lambda client: client.images_in_box(*BOX),
    lambda client: client.images_by_id(["1", "2"]),
    lambda client: client.image("1"),
)
LIMIT = {"error": {"message": "Application request limit reached", "code": 4, "is_transient": True}}


async def failure(awaitable: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "requests"),
    [
        (LIMIT["error"], "rate_limit", 2),
        ({"code": 190, "message": "Invalid OAuth 2.0 Access Token"}, "auth", 1),
        ({"code": 2, "message": "temporarily unavailable"}, "outage", 2),
        ({"code": 1, "message": "An unknown error occurred"}, "bad_response", 2),
        ({}, "bad_response", 2),
    ],
)
@pytest.mark.parametrize("ask", ASKS)
async def test_an_error_is_one_under_any_status(server: Any, ask: Any, error: Any, kind: str, requests: int) -> None:
    server.says_json({"error": error})
    failed = await failure(ask(server.client(Mapillary, max_attempts=2, limit_patience_s=0)))
    assert (failed.kind, len(server.asked)) == (kind, requests)


async def test_a_limit_under_200_that_passes_is_no_error(server: Any, reply: Any) -> None:
    server.says_json(LIMIT).says_json({"data": []})
    assert await server.client(Mapillary).images_in_box(*BOX) == []


async def test_a_crowded_box_under_200_is_to_be_split(server: Any) -> None:
    server.says_json({"error": {"code": 1, "message": "Please reduce the amount of data you're asking for"}})
    assert (await failure(server.client(Mapillary).images_in_box(*BOX))).kind == "too_dense"


async def test_an_answer_without_any_of_the_images_does_not_say_they_are_gone(server: Any) -> None:
    server.says_json({})
    failed = await failure(server.client(Mapillary).images_by_id(["1", "2", "3"]))
    assert failed.kind == "bad_response" and "without any of the 3 images" in failed.message


@pytest.mark.parametrize("exists", [True, False])
async def test_one_image_that_an_answer_lacks_is_asked_for_by_itself(server: Any, exists: bool) -> None:
    unknown = {"error": {"code": 100, "error_subcode": 33, "message": "Object with ID '7' does not exist"}}

    def answer(asked: Any) -> tuple[int, Any]:
        if urlsplit(asked.target).path != "/7":
            return 200, {}
        return (200, {"id": "7"}) if exists else (400, unknown)

    server.answers = answer
    found = await server.client(Mapillary).images_by_id(["7"])
    assert found == ({"7": {"id": "7"}} if exists else {}) and len(server.asked) == 2


@pytest.mark.parametrize("odd", [{"id": 1.23e17}, {"is_pano": True}, {"id": "33x"}, {"id": True}, {"id": None}, 7])
async def test_a_record_without_a_sound_id_spoils_no_other(server: Any, odd: Any) -> None:
    server.says_json({"data": [{"id": "701"}, odd]})
    rows = await server.client(Mapillary).images_in_box(*BOX)
    assert [row["id"] for row in rows] == ["701", ""]
    server.replies.clear()
    server.says_json({"data": [odd, odd]})
    failed = await failure(server.client(Mapillary).images_in_box(*BOX))
    assert failed.kind == "bad_response" and "not one of 2 images has an id" in failed.message


async def test_a_page_that_has_a_next_one_is_not_all(server: Any) -> None:
    whole = {"data": [{"id": "1"}], "paging": {"cursors": {"after": "x"}}}
    server.says_json(whole)
    assert len(await server.client(Mapillary).images_in_box(*BOX)) == 1
    server.replies.clear()
    server.says_json({**whole, "paging": {"next": "https://graph.example.org/images?after=x"}})
    assert (await failure(server.client(Mapillary).images_in_box(*BOX))).kind == "too_dense"


async def test_a_body_nested_without_end_is_no_json(server: Any, reply: Any) -> None:
    server.says(reply(body=b'{"data":' + b"[" * 200_000 + b"]" * 200_000 + b"}"))
    assert (await failure(server.client(Mapillary, max_attempts=1).images_in_box(*BOX))).kind == "bad_response"
    server.replies.clear()
    server.says(reply(500, b'{"error":' + b"[" * 200_000 + b"]" * 200_000 + b"}"))
    assert (await failure(server.client(Mapillary, max_attempts=1).images_in_box(*BOX))).kind == "outage"
