"""The HTTP client against a socket that misbehaves in every way we know of."""

import asyncio
import logging
import pickle
import re
import traceback
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.services import Endpoint
from tasks.services.errors import ServiceError, safe_text, safe_url
from tasks.services.http import Expected, HttpClient
from tasks.services.transport import Connection


async def failure(awaitable) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    return caught.value


async def test_a_good_answer_comes_back_with_the_headers_we_promise(server):
    server.says_json({"a": 1})
    http = HttpClient(server.connection(user_agent="geofix-test/1"), headers={"Authorization": "OAuth x"})
    value, answer = await http.request_json("GET", "/thing", params={"limit": 3})
    assert value == {"a": 1} and answer.attempts == 1 and answer.status == 200
    assert server.asked[0].target == "/thing?limit=3"
    assert server.asked[0].headers["user-agent"] == "geofix-test/1"


async def test_we_say_who_we_are_and_where_to_reach_us_on_every_request(server, reply):
    connection = replace(server.connection(), contact="https://example.org/us")
    assert re.fullmatch(r"geofix/\d+\.\d+.*", connection.endpoint.user_agent)
    server.says(reply())
    http = HttpClient(connection)
    await http.get("/x")
    await http.fetch(f"{server.url}/elsewhere")
    assert [asked.headers["user-agent"] for asked in server.asked] == [
        f"{connection.endpoint.user_agent} (+https://example.org/us)"
    ] * 2


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "rejected", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (413, "too_big", False),
        (418, "rejected", False),
        (302, "blocked", False),
        (408, "timeout", True),
        (429, "rate_limit", True),
        (500, "outage", True),
        (502, "outage", True),
        (503, "outage", True),
        (504, "timeout", True),
    ],
)
async def test_status_decides_kind_and_whether_to_try_again(server, reply, status, kind, retryable):
    server.says(reply(status, b"429 in the text means nothing", "text/plain"))
    error = await failure(server.client(HttpClient, max_attempts=3, limit_patience_s=0).get("/x"))
    assert (error.kind, error.status, error.retryable) == (kind, status, retryable)
    assert len(server.asked) == error.attempts == (3 if retryable else 1)


async def test_a_page_of_a_firewall_is_a_ban_that_is_not_asked_again(server, reply):
    server.says(reply(403, b"<html>Access denied</html>", "text/html"))
    error = await failure(server.client(HttpClient, max_attempts=3).get("/x"))
    assert (error.kind, error.retryable, len(server.asked)) == ("banned", False, 1)
    assert "requests_per_minute" in str(error) and "key" not in str(error)


async def test_a_redirect_says_where_it_would_lead_and_no_secret(server, reply):
    server.says(reply(302, headers={"Location": "https://login.example/in?token=hidden"}))
    error = await failure(server.client(HttpClient).get("/x"))
    assert "to https://login.example/in" in str(error) and "hidden" not in str(error)
    assert error.kind == "blocked" and len(server.asked) == 1


async def test_json_nested_without_end_is_a_bad_answer(server, reply):
    server.says(reply(body=b"[" * 200_000 + b"]" * 200_000))
    error = await failure(server.client(HttpClient, max_attempts=2, backoff_s=0).request_json("GET", "/x"))
    assert error.kind == "bad_response" and len(server.asked) == 2


async def test_it_recovers_and_counts_its_attempts(server, reply):
    server.says(reply(500), reply(hang_up=True), reply(504, b"slow", "text/plain"), reply(body=b'{"ok": true}'))
    value, answer = await server.client(HttpClient).request_json("GET", "/x")
    assert value == {"ok": True} and answer.attempts == 4


async def test_waits_grow_twofold_up_to_the_ceiling(server, reply):
    server.says(reply(503))
    await failure(server.client(HttpClient, max_attempts=6, backoff_s=1, max_wait_s=5).get("/x"))
    assert server.slept_s == [1, 2, 4, 5, 5]


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_in_seconds_is_obeyed(server, reply, status):
    server.says(reply(status, headers={"Retry-After": "7"}), reply())
    await server.client(HttpClient).get("/x")
    (slept_s,) = server.slept_s
    assert 0 < slept_s <= 7  # to that moment: what had passed of it since is not waited again


async def test_retry_after_as_a_date_is_obeyed(server, reply):
    server.says(reply(503, headers={"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}), reply())
    http = HttpClient(server.connection(), sleep=server.sleep, now=lambda: 90.0)
    await http.get("/x")
    assert server.slept_s == [10]


async def test_unreadable_retry_after_falls_back_to_jitter(server, reply):
    server.says(reply(429, headers={"Retry-After": "soon"}), reply())
    await server.client(HttpClient, backoff_s=0.25).get("/x")
    assert server.slept_s == [0.25]


async def test_a_longer_retry_after_than_we_wait_gives_up_at_once(server, reply):
    server.says(reply(429, headers={"Retry-After": "3600"}))
    error = await failure(server.client(HttpClient, max_wait_s=60).get("/x"))
    assert error.kind == "rate_limit" and error.retryable and len(server.asked) == 1 and server.slept_s == []


async def test_a_slow_answer_is_a_timeout(server, reply):
    server.says(reply(delay_s=5))
    for impatience in ({"timeout_s": 0.1}, {"total_timeout_s": 0.1}):
        error = await failure(server.client(HttpClient, max_attempts=1, **impatience).get("/x"))
        assert error.kind == "timeout" and error.retryable


async def test_a_cut_connection_is_an_outage(server, reply):
    server.says(reply(hang_up=True))
    error = await failure(server.client(HttpClient, max_attempts=2).get("/x"))
    assert error.kind == "outage" and len(server.asked) == 2


async def test_nobody_listening_is_an_outage(server):
    error = await failure(server.client(HttpClient, max_attempts=1, base_url="http://127.0.0.1:9").get("/x"))
    assert error.kind == "outage" and error.retryable


async def test_a_truncated_body_is_never_passed_on(server, reply):
    server.says(reply(body=b'{"a": 1}', length=100), reply(body=b'{"a": 2}'))
    value, _ = await server.client(HttpClient).request_json("GET", "/x")
    assert value == {"a": 2} and len(server.asked) == 2
    server.says(reply(body=b'{"a": 1}', length=100))
    assert (await failure(server.client(HttpClient, max_attempts=1).get("/x"))).kind == "bad_response"


async def test_an_html_page_under_status_200_is_not_an_answer(server, reply):
    server.says(reply(body=b"<html>login</html>", content_type="text/html"))
    error = await failure(server.client(HttpClient, max_attempts=2).get("/x"))
    assert error.kind == "outage" and len(server.asked) == 2
    server.says(reply(content_type=None))
    assert (await failure(server.client(HttpClient, max_attempts=1).get("/x"))).kind == "bad_response"


async def test_wrong_json_is_a_bad_response_that_may_pass(server, reply):
    server.says(reply(body=b'{"results": [1, 2'), reply(body=b'{"results": []}'))
    assert (await server.client(HttpClient).request_json("GET", "/x"))[0] == {"results": []}
    server.says(reply(body=b"{not json"))
    assert (await failure(server.client(HttpClient).request_json("GET", "/x"))).kind == "bad_response"


async def test_a_body_over_the_limit_is_dropped(server, reply):
    server.says(reply(body=b'"' + b"a" * 30_000 + b'"'))
    error = await failure(server.client(HttpClient, max_body_mb=0.01).get("/x"))
    assert error.kind == "bad_response" and len(server.asked) == 1


async def test_redirects_are_not_followed(server, reply):
    server.says(reply(302, headers={"Location": f"{server.url}/elsewhere"}))
    await failure(server.client(HttpClient).get("/x"))
    assert len(server.asked) == 1


async def test_no_error_or_log_line_holds_a_secret(server, reply, secret, caplog):
    caplog.set_level(logging.DEBUG)
    echo = f"bad token {secret} at https://cdn.example/p.jpg?oh=00_signature&oe=6543 ".encode()
    signed = f"{server.url}/p.jpg?oh=00_signature&oe=6543&access_token={secret}"
    for status in (400, 401, 403, 404, 429, 500, 504):
        server.says(reply(status, echo, "text/plain", {"Retry-After": "1"}))
        client = server.client(HttpClient, max_attempts=2)
        for asking in (client.get("/x", params={"access_token": secret}), client.fetch(signed)):
            error = await failure(asking)
            shown = "".join(traceback.format_exception(error)) + repr(error) + repr(pickle.loads(pickle.dumps(error)))
            assert secret not in shown and "00_signature" not in shown and "6543" not in shown
    for broken in (reply(hang_up=True), reply(length=9999), reply(content_type="text/html"), reply(body=b"no")):
        server.says(broken)
        error = await failure(server.client(HttpClient, max_attempts=1).fetch(signed, expected=Expected(is_json=True)))
        shown = "".join(traceback.format_exception(error))
        assert secret not in shown and "00_signature" not in shown
    assert secret not in caplog.text and "00_signature" not in caplog.text


async def test_our_key_never_goes_to_another_address(server, reply):
    server.says(reply(body=b"x", content_type="image/jpeg"))
    http = HttpClient(server.connection(), headers={"Authorization": "OAuth secret"})
    await http.fetch(f"{server.url}/p.jpg?oe=1", expected=Expected("image/"))
    assert "authorization" not in server.asked[0].headers
    assert server.asked[0].target == "/p.jpg?oe=1"


def test_one_client_serves_one_loop_after_another(reply):
    """A worker may run each batch with asyncio.run: the pool of a closed loop must not be used again."""

    async def serve_and_ask(http_of):
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply().raw())
            writer.close()

        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            http = http_of(port)
            return http, (await http.fetch(f"http://127.0.0.1:{port}/")).status

    endpoint = Endpoint(base_url="http://127.0.0.1")
    http, status = asyncio.run(serve_and_ask(lambda _: HttpClient(Connection("chat", endpoint))))
    assert status == 200
    assert asyncio.run(serve_and_ask(lambda _: http))[1] == 200


def test_safe_url_keeps_what_was_asked_and_drops_what_opens_doors():
    url = (
        "https://u:p@graph.example:444/images?bbox=1.0,2.0,3.0,4.0&access_token=s3cret&fields=id,geometry&sig=abc#frag"
    )
    assert safe_url(url) == "https://graph.example:444/images?bbox=1.0,2.0,3.0,4.0"
    assert safe_url("http://[bad") == "(malformed address)"


@given(st.text(max_size=300))
def test_safe_text_is_one_short_line_for_any_input(text):
    shown = safe_text(text, ("secret",), limit=50)
    assert len(shown) <= 50 and "\n" not in shown and "secret" not in shown.replace("***", "")
