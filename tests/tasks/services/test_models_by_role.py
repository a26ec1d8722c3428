"""A role decides which server, model and parameters are asked; what servers send is read and never believed."""

import json
from typing import Any

import pytest

from schemas.config import Config
from schemas.load import ConfigError, load_config
from schemas.settings.models import ModelsSettings
from schemas.settings.services import OFFLINE_PRICE, ServicesSettings
from tasks.services import Chat, MissingKeys, ServiceError, connect
from tasks.services.chat_reply import split_tool_calls

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "zoom", "parameters": {"type": "object"}}}


def completion(finish: str = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    return {
        "model": "served",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": usage or {"prompt_tokens": 1000, "completion_tokens": 100},
    }


def chat_of(server: Any, **models: Any) -> Chat:
    """A chat whose endpoint `own` is the scripted server."""
    endpoints = {"own": {"base_url": server.url, "timeout_s": 2, "total_timeout_s": 2}}
    settings = ModelsSettings.model_validate({"endpoints": endpoints, **models})
    return Chat(connect(ServicesSettings(), {}, models=settings).chat, sleep=server.sleep)


async def test_a_role_is_asked_of_its_own_server_with_its_own_parameters(server):
    server.says_json(completion(content="x"))
    role = {
        "endpoint": "own",
        "model": "vendor-large",
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 20,
        "max_tokens": 50,
        "token_limit": "max_completion_tokens",
        "omit": ["seed"],
        "extra_body": {"reasoning_effort": "low"},
        "price": {"prompt": 2, "completion": 10},
    }
    reply = await chat_of(server, roles={"judge": role}).complete(
        "judge", HELLO, seed=3, tools=[TOOL], tool_choice="none"
    )
    body = server.asked[0].json()
    assert {name: body[name] for name in ("model", "temperature", "top_p", "top_k", "max_completion_tokens")} == {
        "model": "vendor-large",
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 20,
        "max_completion_tokens": 50,
    }
    assert body["reasoning_effort"] == "low" and body["tool_choice"] == "none"
    assert "seed" not in body and "max_tokens" not in body and "n" not in body
    assert reply.cost_usd == pytest.approx(0.003) and reply.model == "served"


async def test_what_a_call_asks_for_goes_before_the_role(server):
    server.says_json(completion(content="x"))
    chat = chat_of(server, roles={"judge": {"endpoint": "own", "temperature": 0.3, "max_tokens": 50}})
    await chat.complete("judge", HELLO, temperature=1.0, max_tokens=7, extra_body={"top_a": 1})
    body = server.asked[0].json()
    assert (body["model"], body["temperature"], body["max_tokens"], body["top_a"]) == ("judge", 1.0, 7, 1)


async def test_an_unknown_price_is_unknown_and_stays_so_in_a_sum(server):
    server.says_json(completion(content="x"))
    reply = await chat_of(server, roles={"judge": {"endpoint": "own"}}).complete("judge", HELLO)
    assert reply.cost_usd is None and (reply.usage + reply.usage).cost_usd is None
    assert reply.usage.prompt_tokens == 1000
    assert ServicesSettings().chat.price_of("judge") == OFFLINE_PRICE


async def test_reasoning_length_and_refusals_are_named(server):
    chat = chat_of(server, roles={"m": {"endpoint": "own"}})
    server.says_json(completion(content="4", reasoning_content="2 + 2"))
    assert (await chat.complete("m", HELLO)).reasoning == "2 + 2"
    server.says_json(completion("length", content="The answ"))
    cut = await chat.complete("m", HELLO)
    assert cut.is_cut and cut.finish_reason == "length"
    server.says_json(completion(content=None, refusal="I cannot help with that."))
    assert (await chat.complete("m", HELLO)).finish_reason == "refusal"


async def test_a_content_filter_without_a_message_is_a_refusal(server):
    """Azure's answer when its filter strikes: status 200, a reason and no message."""
    filtered = completion("content_filter")
    del filtered["choices"][0]["message"]
    filtered["choices"][0]["content_filter_results"] = {
        "hate": {"filtered": False, "severity": "safe"}, "violence": {"filtered": True, "severity": "high"},
    }  # fmt: skip
    server.says_json(filtered)
    reply = await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO)
    assert reply.finish_reason == "content_filter" and reply.text.endswith("content filter: violence")
    assert reply.usage.completion_tokens == 100
    without = completion("stop")
    del without["choices"][0]["message"]
    server.says_json(without)
    with pytest.raises(ServiceError, match="no message under 'choices'"):
        await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO)


async def test_a_call_that_its_server_cannot_read_is_what_the_model_wrote(server):
    """Groq answers a malformed tool call with an error, and with the text that the model wrote."""
    written = '<function=zoom>{"box": [1, 2}</function>'
    error = {"message": "Failed to call a function.", "type": "invalid_request_error", "code": "tool_use_failed"}
    server.says_json({"error": {**error, "failed_generation": written}}, 400)
    reply = await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO, tools=[TOOL])
    assert reply.text == written and not reply.tool_calls and reply.usage.requests == 1
    server.says_json({"error": {**error, "code": "invalid_value"}}, 400)
    with pytest.raises(ServiceError) as caught:
        await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO, tools=[TOOL])
    assert caught.value.kind == "rejected"


async def test_several_choices(server):
    two = completion(content="a")
    two["choices"].append({"index": 1, "message": {"content": "b"}, "finish_reason": "stop"})
    server.says_json(two)
    reply = await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO, n=2)
    assert server.asked[0].json()["n"] == 2
    assert (reply.text, [one.text for one in reply.alternatives]) == ("a", ["b"])
    assert reply.usage.completion_tokens == 100 and reply.alternatives[0].usage.completion_tokens == 0


async def test_tool_calls_in_the_text_arrive_as_tool_calls(server):
    chat = chat_of(server, roles={"m": {"endpoint": "own"}})
    written = '<think>I zoom.</think>\n<tool_call>\n{"name": "zoom", "arguments": {"box":  [1, 2]}}\n</tool_call>'
    server.says_json(completion(content=written))
    reply = await chat.complete("m", HELLO, tools=[TOOL])
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("zoom", '{"box":  [1, 2]}')]
    assert reply.text == "<think>I zoom.</think>" and reply.finish_reason == "tool_calls"
    without = await chat.complete("m", HELLO)
    assert not without.tool_calls and without.text == written, "without tools a text is a text"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call>', [("a", "{}")]),
        ('<tool_call>{"name": "a", "arguments": {}}', [("a", "{}")]),
        ('x <tool_call>{"name":"a","parameters":{"q":1}}</tool_call>\n<tool_call>{"name":"b"}</tool_call>', None),
        ('<tool_call>{"name": "a", "arguments": "{\\"q\\": 1}"}</tool_call>', [("a", '{"q": 1}')]),
        ('<think><tool_call>{"name": "a"}</tool_call></think> answer', []),
        ("<tool_call>{broken</tool_call>", []),
        ('<tool_call>{"name": "a"} and more</tool_call>', []),
        ("<tool_call>[1]</tool_call>", []),
        ("<tool_call>" * 100_000, []),
        ("<tool_call>" + "[" * 200_000, []),
        ('<tool_call>{"name": "' + "x" * 10, []),
    ],
)
def test_forms_of_calls_in_a_text(text: str, calls: list[tuple[str, str]] | None) -> None:
    said, found = split_tool_calls(text)
    assert found == ([("a", '{"q":1}'), ("b", "{}")] if calls is None else calls)
    assert found or said == text


HOSTILE = [
    b'{"choices": "x"}',
    b'{"choices": [null]}',
    b'{"choices": [{"message": 7}]}',
    b'{"choices": [{"message": {"content": 5, "tool_calls": {"a": 1}}}]}',
    b'{"choices": [{"message": {"tool_calls": [{"function": {"name": 5}}]}}]}',
    b'{"choices": [{"message": {"tool_calls": [' + b",".join([b'{"function": {"name": "f"}}'] * 5000) + b"]}}]}",
    b'{"choices": [{"message": {"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}",
    b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -5, "completion_tokens": 1e99}}',
    b'{"choices": [{"message": {"content": "\\ud800"}}]}',
    b"[1, 2",
    b"null",
    b"",
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", HOSTILE)
async def test_hostile_replies_end_in_a_reply_or_a_named_error(server, reply, body):
    server.says(reply(body=body))
    try:
        answer = await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO, tools=[TOOL])
    except ServiceError as error:
        assert error.kind in ("bad_response", "outage") and len(str(error)) < 700
    else:
        assert isinstance(answer.text, str) and answer.usage.prompt_tokens >= 0
        json.dumps(answer.message())


async def test_repeated_ids_of_calls_are_told_apart(server):
    call = {"id": "c", "function": {"name": "zoom", "arguments": "{}"}}
    server.says_json(completion(content=None, tool_calls=[call, call, {**call, "id": "c_1"}]))
    reply = await chat_of(server, roles={"m": {"endpoint": "own"}}).complete("m", HELLO, tools=[TOOL])
    assert len({one.id for one in reply.tool_calls}) == 3


def test_only_the_keys_of_roles_that_are_asked_are_needed() -> None:
    endpoints = {name: {"base_url": f"https://{name}.example/v1", "key_env": f"{name.upper()}_KEY"} for name in "ab"}
    models = ModelsSettings.model_validate(
        {"endpoints": endpoints, "roles": {"judge": {"endpoint": "a"}, "planner": {"endpoint": "b"}}}
    )
    away = ServicesSettings.model_validate({"chat": {"base_url": "https://c.example", "key_env": "C_KEY"}})
    for roles, wanted in ((["judge"], ["A_KEY"]), (["planner"], ["B_KEY"]), (["other", "judge"], ["A_KEY", "C_KEY"])):
        with pytest.raises(MissingKeys) as caught:
            connect(away, {}, ["chat"], models, roles)
        assert sorted(one for one in ("A_KEY", "B_KEY", "C_KEY") if one in str(caught.value)) == wanted
    assert connect(away, {"A_KEY": "k"}, ["chat"], models, ["judge"]).secrets() == (
        "MLY|1000000000000001|0ff11e0ff11e0ff11e0ff11e0ff11e00",
        "tvly-offline-world",
        "AIza-offline-vision",
        "offline-world-maps",
        "k",
    )


def test_a_role_of_an_unknown_endpoint_is_refused_when_the_settings_are_made() -> None:
    with pytest.raises(ConfigError, match="there is no endpoint 'nowhere'; there are chat, trained"):
        load_config(overrides=["models.roles.judge.endpoint=nowhere"])
    assert isinstance(load_config(overrides=["models.roles.judge.model=x"]), Config)
