"""The OpenAI protocol over a socket: refusals, usage, the official client unchanged."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

HELLO = [{"role": "user", "content": "hello"}]


def post(client: httpx.Client, body: Any) -> httpx.Response:
    return client.post("/chat/completions", json=body)


def test_a_missing_or_malformed_key_is_refused_without_repeating_it(chat_url: str) -> None:
    missing = httpx.post(f"{chat_url}/chat/completions", json={"model": "planner", "messages": HELLO})
    assert missing.status_code == 401
    assert set(missing.json()["error"]) == {"message", "type", "param", "code"}
    headers = {"Authorization": "Bearer not-a-key-of-ours"}
    wrong = httpx.get(f"{chat_url}/models", headers=headers)
    assert wrong.status_code == 401
    assert wrong.json()["error"]["code"] == "invalid_api_key"
    assert "not-a-key-of-ours" not in wrong.text


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"model": "gpt-unknown", "messages": HELLO}, 404, None, "model_not_found"),
        ({"messages": HELLO}, 400, "model", None),
        ({"model": "planner"}, 400, "messages", "missing_required_parameter"),
        ({"model": "planner", "messages": []}, 400, "messages", "empty_array"),
        ({"model": "planner", "messages": "hi"}, 400, "messages", "invalid_type"),
        ({"model": "planner", "messages": [{"role": "cat", "content": "x"}]}, 400, "messages[0].role", "invalid_value"),
        ({"model": "planner", "messages": HELLO, "temperature": 3}, 400, "temperature", "decimal_above_max_value"),
        ({"model": "planner", "messages": HELLO, "n": 0}, 400, "n", "integer_below_min_value"),
        ({"model": "planner", "messages": HELLO, "seed": "7"}, 400, "seed", "invalid_type"),
        ({"model": "observer", "messages": HELLO}, 400, "messages", "image_required"),
        ({"model": "planner", "messages": HELLO, "top_p": 7}, 400, "top_p", "decimal_above_max_value"),
        ({"model": "planner", "messages": HELLO, "top_k": 0.5}, 400, "top_k", "invalid_type"),
        ({"model": "planner", "messages": HELLO, "tempreature": 1}, 400, "tempreature", "unknown_parameter"),
        ({"model": "planner:sideways", "messages": HELLO}, 404, None, "model_not_found"),
        (
            {"model": "planner", "messages": [{"role": "user", "content": "x" * 3_000_000}]},
            400,
            "messages",
            "context_length_exceeded",
        ),
        ([1, 2], 400, None, None),
    ],
)
def test_bad_requests_name_the_field(
    client: httpx.Client, body: Any, status: int, param: str | None, code: str | None
) -> None:
    answer = post(client, body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_bad_json_pictures_and_tool_order_are_refused(client: httpx.Client) -> None:
    assert client.post("/chat/completions", content=b"{nonsense").status_code == 400
    for url, code in (
        ("https://example.org/a.png", "invalid_image_url"),
        ("data:image/png;base64,!!!", "invalid_base64"),
        ("data:image/png;base64,aGVsbG8=", "invalid_image_format"),
    ):
        part = {"type": "image_url", "image_url": {"url": url}}
        answer = post(client, {"model": "judge", "messages": [{"role": "user", "content": [part]}]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    stray = [*HELLO, {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
    assert post(client, {"model": "planner", "messages": stray}).json()["error"]["param"] == "messages.[1].role"
    call = {"id": "call_1", "type": "function", "function": {"name": "search_web", "arguments": "{}"}}
    unanswered = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert post(client, {"model": "planner", "messages": unanswered}).status_code == 400


def test_the_planner_takes_no_pictures(client: httpx.Client, scenes: Any) -> None:
    answer = post(client, {"model": "planner", "messages": [scenes.message(scenes.draw(["Lyon"]))]})
    assert answer.status_code == 400


def test_usage_grows_with_pixels_and_text(ask: Any, scenes: Any) -> None:
    small = ask("judge", [scenes.message(scenes.draw([], (400, 200)))], temperature=0)["usage"]
    large = ask("judge", [scenes.message(scenes.draw([], (800, 400)))], temperature=0)["usage"]
    assert large["prompt_tokens"] - small["prompt_tokens"] == 29 * 15 - 15 * 8
    assert large["total_tokens"] == large["prompt_tokens"] + large["completion_tokens"]


def test_choices_stop_and_length(ask: Any, scenes: Any) -> None:
    messages = [scenes.message(scenes.draw(["Lyon"]))]
    many = ask("answerer-small", messages, n=3, temperature=1, seed=3)
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2]
    cut = ask("observer", messages, max_tokens=5, temperature=0)["choices"][0]
    assert cut["finish_reason"] == "length" and len(cut["message"]["content"]) <= 20
    half = ask("observer:length", messages, temperature=0)["choices"][0]
    assert half["finish_reason"] == "length" and len(half["message"]["content"]) > 20
    stopped = ask("observer", messages, stop=["## Text"], temperature=0)["choices"][0]
    assert "## Text" not in stopped["message"]["content"]


def test_the_official_client_works_unchanged(chat_url: str, scenes: Any) -> None:
    with openai.OpenAI(base_url=chat_url, api_key="sk-offline-world", max_retries=0) as official:
        assert {"observer", "planner", "judge"} <= {model.id for model in official.models.list()}
        messages = [scenes.message(scenes.draw(["Boulangerie Martin"]))]
        seen = official.chat.completions.create(model="observer", messages=messages, temperature=0)
        assert "Boulangerie Martin" in (seen.choices[0].message.content or "")
        assert seen.usage is not None and seen.usage.total_tokens > 100
        with pytest.raises(openai.BadRequestError, match="stream"):
            official.chat.completions.create(model="observer", messages=messages, stream=True)
        with pytest.raises(openai.NotFoundError):
            official.chat.completions.create(model="nobody", messages=messages)


@pytest.mark.parametrize("model", ["agent", "planner"])
def test_a_tool_that_is_asked_for_by_name_is_called(client: httpx.Client, model: str) -> None:
    """As `geofix models` asks; in synthesis both call the tools of their recipe."""
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    tool = {"type": "function", "function": {"name": "report", "description": "d", "parameters": parameters}}
    asked = [{"role": "user", "content": "Call the tool `report` with the word ok."}]
    body = {"model": model, "messages": asked, "tools": [tool]}
    [choice] = post(client, body).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "report" and json.loads(call["function"]["arguments"]) == {"word": "ok"}
