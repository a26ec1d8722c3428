"""Panoramax over a real socket: what it may answer, right and wrong."""

import io
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from tasks.collect.providers.panoramax.client import Panoramax
from tasks.services import ServiceError

BOX = (2.0, 48.0, 2.1, 48.1)
A, B = "0a1b2c3d-0000-4000-8000-00000000000a", "0a1b2c3d-0000-4000-8000-00000000000b"


async def failure(awaitable: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    return caught.value


def features(*ids: Any) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": [{"id": one} for one in ids], "links": []}


def picture(**options: Any) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((320, 160), 80).convert("RGB").save(out, "JPEG", **options)
    return out.getvalue()


def asked(server: Any, number: int = -1) -> dict[str, list[str]]:
    return parse_qs(urlsplit(server.asked[number].target).query)


async def test_a_box_is_asked_with_a_limit_and_west_first(server: Any) -> None:
    server.says_json(features(A, B), content_type="application/geo+json")
    rows = await server.client(Panoramax).items_in_box(*BOX, 500)
    assert [row["id"] for row in rows] == [A, B]
    assert asked(server) == {"bbox": ["2.0000000,48.0000000,2.1000000,48.1000000"], "limit": ["500"]}
    await server.client(Panoramax).items_in_box(*BOX, 50_000)
    assert asked(server)["limit"] == ["10000"]


async def test_ids_are_asked_with_commas_and_a_limit_fifty_at_a_time(server: Any) -> None:
    """Without a limit ten are answered, and of a JSON array the first."""
    many = [f"0a1b2c3d-0000-4000-8000-{number:012d}" for number in range(60)]
    server.answers = lambda request: (200, features(*parse_qs(urlsplit(request.target).query)["ids"][0].split(",")))
    assert list(await server.client(Panoramax).items([*many, many[0]])) == many
    assert [asked(server, number)["limit"] for number in (0, 1)] == [["50"], ["10"]]
    assert server.asked[0].method == "GET"


async def test_what_is_gone_is_left_out_and_not_found_by_itself(server: Any) -> None:
    server.says_json(features(B))
    client = server.client(Panoramax)
    assert list(await client.items([A, B])) == [B]
    server.says_json(features())
    assert (await failure(client.item(A))).kind == "not_found"


async def test_other_pictures_than_those_asked_for_are_not_taken_for_them(server: Any) -> None:
    server.says_json(features(B))
    assert (await failure(server.client(Panoramax).item(A))).kind == "not_found"


@pytest.mark.parametrize("odd", ["../../secret", "0A1B", "", A + "\n"])
async def test_no_text_but_a_uuid_becomes_part_of_a_request(server: Any, odd: str) -> None:
    assert (await failure(server.client(Panoramax).items([odd]))).kind == "rejected"
    assert server.asked == []


async def test_a_record_without_a_sound_id_spoils_no_other(server: Any) -> None:
    server.says_json(features(A, 7, None, "x"))
    assert [row["id"] for row in await server.client(Panoramax).items_in_box(*BOX, 10)] == [A, "", "", ""]
    server.says_json(features("x", "y"))
    assert (await failure(server.client(Panoramax).items_in_box(*BOX, 10))).kind == "bad_response"


@pytest.mark.parametrize("body", [b"[]", b'{"features": null}', b"{}"])
async def test_an_answer_without_features_is_not_believed(server: Any, reply: Any, body: bytes) -> None:
    server.says(reply(body=body))
    assert (await failure(server.client(Panoramax).items_in_box(*BOX, 10))).kind == "bad_response"


async def test_a_refusal_is_said_and_an_outage_tried_again(server: Any, reply: Any) -> None:
    server.says_json({"message": "Parameter limit must be a number", "status_code": 400}, 400)
    error = await failure(server.client(Panoramax).items_in_box(*BOX, 10))
    assert error.kind == "rejected" and "Parameter limit" in error.message
    server.says(reply(502, b"<html>bad gateway</html>", "text/html"), reply(body=json.dumps(features(A)).encode()))
    assert len(await server.client(Panoramax).items_in_box(*BOX, 10)) == 1


async def test_a_picture_that_breaks_off_is_asked_for_again(server: Any, reply: Any) -> None:
    whole = picture()
    server.says(reply(body=whole[:-700], content_type="image/jpeg"), reply(body=whole, content_type="image/jpeg"))
    assert await server.client(Panoramax).fetch(f"{server.url}/pictures/{A}/hd.jpg") == whole
    assert len(server.asked) == 2
    server.says(reply(body=whole[:30], content_type="image/jpeg"))
    error = await failure(server.client(Panoramax).fetch(f"{server.url}/pictures/{A}/hd.jpg"))
    assert error.kind == "bad_response" and error.retryable


async def test_the_end_of_a_thumbnail_is_not_the_pictures_and_what_cameras_append_is_no_matter(
    server: Any, reply: Any
) -> None:
    exif = Image.Exif()
    exif[0x010E] = "x" * 200 + "\u00ff\u00d9"
    whole = picture(exif=exif, comment=b"\xff\xd9")
    server.says(reply(body=whole + b"a film of 3 s", content_type="image/jpeg"))
    assert (await server.client(Panoramax).fetch(f"{server.url}/hd.jpg")).startswith(whole)
    server.says(reply(body=whole[:-900], content_type="image/jpeg"))
    assert (await failure(server.client(Panoramax).fetch(f"{server.url}/hd.jpg"))).retryable


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b'{"message": "Picture can\'t be found", "status_code": 404}', "not_found"),
        (404, b"<!doctype html><title>404 Not Found</title>", "blocked"),
        (403, b"<html>Forbidden</html>", "blocked"),
        (401, b"{}", "blocked"),
        (302, b"", "blocked"),
    ],
)
async def test_only_the_apis_own_word_says_that_a_picture_is_gone(
    server: Any, reply: Any, status: int, body: bytes, kind: str
) -> None:
    """A page of a proxy must end nothing, and stop no stage as a wrong key would."""
    server.says(reply(status, body, "text/html", {"Location": "https://elsewhere.example/"} if status == 302 else {}))
    error = await failure(server.client(Panoramax, max_attempts=1).fetch(f"{server.url}/pictures/{A}/hd.jpg"))
    assert (error.kind, error.status) == (kind, status)


async def test_addresses_inside_our_network_are_not_read_for_a_public_service(server: Any) -> None:
    client = server.client(Panoramax, base_url="https://api.panoramax.example/api")
    for url in ("http://127.0.0.1/x.jpg", "https://10.0.0.7/x.jpg", "file:///etc/passwd"):
        assert (await failure(client.fetch(url))).kind in ("rejected", "blocked")


async def test_a_tile_may_be_empty(server: Any, reply: Any) -> None:
    server.says(reply(body=b"", content_type="application/vnd.mapbox-vector-tile"))
    client = server.client(Panoramax)
    assert await client.tile(15, 16588, 11275) == b"" and server.asked[0].target == "/map/15/16588/11275.mvt"
    assert (await failure(client.tile(16, 0, 0))).kind == "rejected"
