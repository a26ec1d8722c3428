"""A checkpoint served over a real socket: OpenAI's shapes, pictures, seeds, and errors a client can act on."""

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from flows.trained import ModelServer
from infra.serve.server import Service
from schemas.settings.services import ServicesSettings, TrainedEndpoint
from tasks.services import Chat, connect

KEY = "sk-for-this-test"


def data_uri(colour: str = "navy", size: tuple[int, int] = (200, 100)) -> str:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def question(url: str | None = None) -> list[dict[str, Any]]:
    picture = {"type": "image_url", "image_url": {"url": url or data_uri()}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": "Where was this picture taken?"}]}]


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "infra.serve", "--model", str(checkpoint), "--port", str(port), "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--max-context", "400", "--key-env", "SERVE_TEST_KEY", "--lifeline"],
        stdin=subprocess.PIPE,
        env={**os.environ, "SERVE_TEST_KEY": KEY},
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(6000):
        assert process.poll() is None, "the server did not start"
        try:
            if httpx.get(f"{url}/health", timeout=30).json()["model"] == "tiny-model":
                break
        except httpx.TransportError:
            time.sleep(0.1)
    yield url, process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def client(server: tuple[str, subprocess.Popen[bytes]]) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server[0] + "/v1", headers=headers, timeout=60) as opened:
        yield opened


def ask(client: httpx.Client, **changes: Any) -> httpx.Response:
    body = {"model": "tiny-model", "messages": question(), "max_tokens": 8, "temperature": 0, **changes}
    return client.post("/chat/completions", json=body)


def test_an_answer_has_openais_shape_and_counts_its_tokens(client: httpx.Client) -> None:
    assert [row["id"] for row in client.get("/models").json()["data"]] == ["tiny-model"]
    reply = ask(client).json()
    assert reply["object"] == "chat.completion" and reply["model"] == "tiny-model"
    [choice] = reply["choices"]
    assert choice["message"]["role"] == "assistant" and isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] == "length"
    usage = reply["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    larger = ask(client, messages=question(data_uri(size=(2000, 1000)))).json()["usage"]["prompt_tokens"]
    assert larger == usage["prompt_tokens"], "a large picture is brought to the model's own budget"


def test_the_same_request_gets_the_same_answer(client: httpx.Client) -> None:
    def text(**changes: Any) -> str:
        return str(ask(client, **changes).json()["choices"][0]["message"]["content"])

    assert text() == text()
    seeded = {"temperature": 1.0, "seed": 5, "max_tokens": 16}
    assert text(**seeded) == text(**seeded)
    assert len({text(temperature=1.5, seed=seed, max_tokens=16) for seed in range(4)}) > 1
    assert len({text(messages=question(data_uri(c))) for c in ("white", "black", "red")}) > 0


def test_requests_at_the_same_time_are_answered_as_alone(client: httpx.Client) -> None:
    colours = ("white", "black", "red", "green", "blue", "gold")
    alone = [ask(client, messages=question(data_uri(colour))).json()["choices"][0] for colour in colours]

    def at_once(colour: str) -> Any:
        return ask(client, messages=question(data_uri(colour))).json()["choices"][0]

    with ThreadPoolExecutor(len(colours)) as pool:
        assert list(pool.map(at_once, colours)) == alone


def test_a_seed_draws_the_same_whatever_is_answered_beside_it(client: httpx.Client) -> None:
    def text(seed: int) -> str:
        drawn = ask(client, temperature=1.0, top_p=0.9, seed=seed, max_tokens=24)
        return str(drawn.json()["choices"][0]["message"]["content"])

    alone = [text(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(text, range(6))) == alone
        assert list(pool.map(text, reversed(range(6)))) == alone[::-1]
    assert len(set(alone)) == 6
    for odd in (-5, 10**30):  # OpenAI's clients may send any integer
        assert text(odd) == text(odd) != text(1)


async def test_our_own_chat_client_talks_to_it(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    endpoint = TrainedEndpoint(base_url=server[0] + "/v1", key_env="SERVE_TEST_KEY")
    connections = connect(ServicesSettings(trained=endpoint), {"SERVE_TEST_KEY": KEY})
    assert connections.trained is not None
    chat = Chat(connections.trained)
    reply = await chat.complete("tiny-model", question(), seed=1, temperature=0.5, max_tokens=4)
    assert reply.usage.completion_tokens == 4
    await chat.close()


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "another"}, 404, "model_not_found"),
        ({"messages": []}, 400, "invalid_request"),
        ({"temperature": 3}, 400, "invalid_request"),
        ({"stream": True}, 400, "invalid_request"),
        ({"n": 2}, 400, "invalid_request"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, 400, "invalid_request"),
        ({"messages": question("http://127.0.0.1/secret.jpg")}, 400, "invalid_image_url"),
        ({"messages": question("file:///etc/passwd")}, 400, "invalid_image_url"),
        ({"messages": question("data:image/jpeg;base64,????")}, 400, "invalid_image"),
        (
            {"messages": question("data:image/jpeg;base64," + base64.b64encode(b"no picture").decode())},
            400,
            "invalid_image",
        ),
        ({"messages": [{"role": "user", "content": "far " * 600}]}, 400, "context_length_exceeded"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    client: httpx.Client, changes: dict[str, Any], status: int, code: str
) -> None:
    reply = ask(client, **changes)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_a_broken_body_a_wrong_key_and_an_unknown_address(
    client: httpx.Client, server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    assert client.post("/chat/completions", content=b"{").status_code == 400
    assert client.post("/nothing").json()["error"]["code"] == "unknown_url"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
        refused = httpx.get(server[0] + "/v1/models", headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "wrong_host"),  # a name that its owner leads to 127.0.0.1
        ({"Host": "evil.example:8761"}, "wrong_host"),
        ({"Origin": "http://evil.example"}, "wrong_origin"),
        ({"Origin": "null"}, "wrong_origin"),
    ],
)
def test_a_page_of_another_address_is_not_answered(client: httpx.Client, headers: dict[str, str], code: str) -> None:
    body = {"model": "tiny-model", "messages": question(), "max_tokens": 1}
    for reply in (client.get("/models", headers=headers), client.post("/chat/completions", json=body, headers=headers)):
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, code)
        assert "access-control-allow-origin" not in reply.headers
    own = str(client.base_url).removesuffix("/v1/")
    assert client.get("/models", headers={"Origin": own}).status_code == 200
    assert client.get("/models", headers={"Host": "localhost"}).status_code == 200


def test_a_conversation_is_read_as_the_processor_itself_reads_it(checkpoint: Path) -> None:
    from infra.serve.model import RecallingEncoder
    from tasks.train.loading import open_processor

    processor = open_processor(checkpoint)
    encoder = RecallingEncoder(processor)
    pictures = [Image.effect_noise((112, 56), 80).convert("RGB"), Image.new("RGB", (56, 84), "red")]
    tools = [{"type": "function", "function": {"name": "zoom", "parameters": {"type": "object", "properties": {}}}}]
    for shown in ([0], [0, 1, 0], [1, 0], []):  # known ones, new ones and none
        parts: list[dict[str, Any]] = [{"type": "image", "image": pictures[number]} for number in shown]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "Where is it?"}]}]
        found = encoder.prompt(messages, tools, [pictures[number] for number in shown])
        wanted = processor.apply_chat_template(
            messages, tools=tools, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        )
        assert found.ids == wanted["input_ids"][0].tolist()
        if shown:
            assert found.pixels is not None and found.pixels.equal(wanted["pixel_values"])
            assert [list(grid) for grid in found.grids] == wanted["image_grid_thw"].tolist()


def test_the_mark_of_a_picture_in_a_text_is_refused(client: httpx.Client) -> None:
    reply = ask(client, messages=[{"role": "user", "content": "a <|image_pad|> without a picture"}])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert "the mark that stands for a picture" in reply.json()["error"]["message"]


def test_tool_calls_come_back_as_tool_calls() -> None:
    from infra.serve.model import Answer
    from infra.serve.request import ChatRequest
    from infra.serve.server import _completion

    text = '<think>A sign.</think>\n<tool_call>\n{"name": "search_web", "arguments": {"query": "x"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "search_web"}}]
    asked = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools})
    choice = _completion(asked, Answer(text, "stop", 1, (7,)))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "<think>A sign.</think>"
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("search_web", {"query": "x"})
    without = asked.model_copy(update={"tools": None})
    assert _completion(without, Answer(text, "stop", 1, (7,)))["choices"][0]["message"]["content"] == text


@pytest.mark.whole
def test_it_ends_with_its_starter(server: tuple[str, subprocess.Popen[bytes]], client: httpx.Client) -> None:
    _, process = server
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(300) == 0


@pytest.mark.whole
def test_it_imports_before_it_is_told_what_to_serve(checkpoint: Path, tmp_path: Path) -> None:
    server = ModelServer(tmp_path / "server.log")
    server.import_ahead()
    with pytest.raises(httpx.TimeoutException):
        httpx.get(f"{server.url}/models", timeout=1)
    server.load(checkpoint, "a-name")
    try:
        server.ensure()
        assert [model["id"] for model in httpx.get(f"{server.url}/models").json()["data"]] == ["a-name"]
    finally:
        server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/models")


def test_one_that_imports_ahead_ends_with_its_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    from infra.serve.server import main

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))  # closed before it says what to serve
    assert main(["--lifeline"]) == 0


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from infra.serve.server import main

    assert main(["--model", str(tmp_path)]) == 1
    assert "is not a checkpoint" in capsys.readouterr().err


def test_on_a_cluster_it_is_asked_by_the_heads_name_and_by_no_other() -> None:
    client = TestClient(Service(cast(Any, object()), "tiny", host="head").app())
    assert client.get("/v1/models", headers={"Host": "head:8000"}).status_code == 200
    assert client.get("/v1/models", headers={"Host": "evil.example:8000"}).json()["error"]["code"] == "wrong_host"
    alone = TestClient(Service(cast(Any, object()), "tiny").app())
    assert alone.get("/v1/models", headers={"Host": "head:8000"}).json()["error"]["code"] == "wrong_host"
