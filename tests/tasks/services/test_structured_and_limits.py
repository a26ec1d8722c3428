"""Answers in a form with one repair, tokens a minute, and what `geofix models` finds out."""

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from flows.cli import app
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.agent.model_probe import (
    FORM,
    PICTURE,
    TOOL,
    VECTORS,
    WORDS,
    BadStructure,
    probe,
    probe_embedder,
    structured,
)
from tasks.services import Chat, connect
from tasks.services.rate_budget import ProcessRateBudget

HELLO = [{"role": "user", "content": "hi"}]


class Colour(BaseModel):
    name: str
    share: float


def completion(text: str = "ok", finish: str = "stop", calls: Any = None) -> dict[str, Any]:
    message = {"content": text, "tool_calls": calls}
    usage = {"prompt_tokens": 50, "completion_tokens": 50}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def chat_of(server: Any, **endpoint: Any) -> Chat:
    own = {"base_url": server.url, "timeout_s": 2, "total_timeout_s": 2, **endpoint}
    models = ModelsSettings.model_validate({"endpoints": {"own": own}, "roles": {"m": {"endpoint": "own"}}})
    return Chat(connect(ServicesSettings(), {}, models=models).sharing(ProcessRateBudget()).chat)


async def test_a_wrong_form_is_repaired_once(server):
    replies = iter(['{"name": "red"}', '<think>hm</think>\n```json\n{"name": "red", "share": 0.5}\n```'])
    server.answers = lambda asked: (200, completion(next(replies)))
    value, reply = await structured(chat_of(server), "m", HELLO, Colour)
    assert value == Colour(name="red", share=0.5) and reply.usage.prompt_tokens == 100
    form = server.asked[0].json()["response_format"]["json_schema"]
    assert form["name"] == "Colour" and "share" in form["schema"]["properties"]
    assert "share: Field required" in server.asked[1].json()["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("text", "finish", "fault"),
    [("[" * 200_000, "stop", "the answer"), ("no", "stop", "Invalid JSON"), ("{", "length", "cut at its longest")],
)
async def test_a_form_that_does_not_come_is_an_error_with_what_it_cost(server, text, finish, fault):
    server.says_json(completion(text, finish))
    with pytest.raises(BadStructure, match=fault) as caught:
        await structured(chat_of(server), "m", HELLO, Colour)
    assert len(server.asked) == 2 and caught.value.usage.requests == 2


async def test_tokens_of_a_minute_are_a_pace(server):
    server.says_json(completion())
    chat = chat_of(server, tokens_per_minute=6000)
    began_s = time.monotonic()
    for _ in range(3):
        await chat.complete("m", HELLO, max_tokens=200)
    # About 107 tokens expected of each at first: 100 a second.
    assert 1.5 < time.monotonic() - began_s < 6


async def test_a_probe_tells_what_works_and_raises_nothing(server):
    def answers(asked: Any) -> tuple[int, Any]:
        body = asked.json()
        if isinstance(body["messages"][0]["content"], list):
            return 400, {"error": {"message": "image_url is not supported"}}
        if "tools" in body:
            return 200, completion("", "tool_calls", [{"id": "1", "function": {"name": "report", "arguments": "{}"}}])
        return 200, completion("ok")

    server.answers = answers
    found = await probe(chat_of(server), "m")
    assert [found.works(check) for check in (WORDS, PICTURE, TOOL, FORM)] == [True, False, True, False]
    assert "not supported" in found.failed[PICTURE] and found.usage.requests >= 4
    server.answers = lambda asked: (401, {"error": {"message": "wrong key"}})
    assert set((await probe(chat_of(server), "m")).failed) == {WORDS, PICTURE, TOOL, FORM}


@pytest.mark.parametrize(
    ("recipe", "asked"),
    [
        ("spotagent", {"observer", "planner", "answerer-base", "trained"}),
        ("geovista", {"agent", "answerer-base"}),
        ("geoagent", {"agent", "embedder", "consistency", "answerer-base"}),
        ("thinking-with-map", {"agent", "verifier", "answerer-base"}),
    ],
)
def test_models_names_every_role_that_a_recipe_asks(recipe: str, asked: set[str], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    only = ["--set", "synthesize.also=[]"]
    done = CliRunner().invoke(app, ["models", "--recipe", recipe, "--dry-run", "--json", *only])
    assert done.exit_code == 0, done.output
    rows = {row["role"]: row for row in json.loads(done.stdout)}
    assert asked <= {role for role, row in rows.items() if row["asked_by"] != "no stage"}
    assert all(not row["missing"] for row in rows.values()), "the run serves its own models"
    assert [role for role, row in rows.items() if row["embeds"]] == (["embedder"] if recipe == "geoagent" else [])


async def test_vectors_are_probed_and_a_missing_embedder_is_told(server):
    server.says_json({"data": [{"index": n, "embedding": [1.0, 2.0]} for n in range(2)], "usage": {"prompt_tokens": 3}})
    found = await probe_embedder(chat_of(server), "m")
    assert found.works(VECTORS) and found.checks == (VECTORS,)
    server.answers = lambda asked: (404, {"error": {"message": "no such model"}})
    assert "no such model" in (await probe_embedder(chat_of(server), "m")).failed[VECTORS]


def test_models_of_production_are_named_without_asking(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    done = CliRunner().invoke(app, ["models", "--profile", "production", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "gpt-4.1" in done.stdout and "https://api.openai.com/v1" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "OPENAI_API_KEY" in line]
    assert line == "missing: no key in OPENAI_API_KEY (services.chat.key_env): judge, observer"
    # SpotAgent A.4: the Observer is one vendor's model and the planner another's.
    (line,) = [line for line in done.stdout.splitlines() if "ANTHROPIC_API_KEY" in line]
    assert line == "missing: no key in ANTHROPIC_API_KEY (models.endpoints.anthropic.key_env): planner"
    assert "GEMINI" not in done.stdout, "other recipes' keys are not asked for"
    assert "the price of 'Qwen/Qwen2.5-VL-7B-Instruct' is unknown" in done.stdout
    asked = CliRunner().invoke(app, ["models", "--profile", "production"])
    assert asked.exit_code == 2 and list(tmp_path.iterdir()) == []
    assert "OPENAI_API_KEY" in asked.stderr and "ANTHROPIC_API_KEY" in asked.stderr


def test_a_budget_without_a_price_is_refused_before_anything_starts(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    sets = [
        "--set",
        "models.endpoints.own.base_url=http://127.0.0.1:9",
        "--set",
        "models.roles.answerer-base.endpoint=own",
    ]
    sets += ["--set", "difficulty.policy=answerer-base"]
    done = CliRunner().invoke(app, ["difficulty", *sets, "--budget", "1", "--set", "offline.serve=false"])
    assert done.exit_code == 2 and "models.roles.answerer-base.price" in done.stderr, done.stderr
