"""A pool that is asked through Ray: the same client, and actors in place of an address."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from schemas.config import Config
from schemas.settings.models import pool_endpoint
from schemas.settings.pools import Pool
from tasks.lake import Lake
from tasks.runtime.calls import StageCalls
from tasks.runtime.on_ray.budget_actor import shared_rate_budget
from tasks.runtime.on_ray.model_pools import PoolPlan
from tasks.services import Chat, ServiceError, connect

POOL = Pool(model="hub/eyes", gpus=0, transport="ray", replicas=(2, 2))
PLAN = PoolPlan("eyes", POOL, "hub/eyes", "hub/eyes")
Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


def completion(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode()


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Actors that answer as `found.answer` says, and what they were asked."""
    found = SimpleNamespace(answer=lambda name, request: (200, completion("yes")), asked=[])

    def actor(name: str, namespace: str) -> Any:
        assert namespace == "geofix" and name in PLAN.actors

        def remote(body: bytes) -> Any:
            future: Future[Any] = Future()
            request = json.loads(body)
            found.asked.append((name, request["messages"][0]["content"]))
            try:
                future.set_result(found.answer(name, request))
            except Exception as error:  # noqa: BLE001 - what the actor's call raises
                future.set_exception(error)
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(complete=SimpleNamespace(remote=remote))

    monkeypatch.setattr(ray, "get_actor", actor)
    return found


def configured(**endpoint: Any) -> Config:
    eyes = pool_endpoint(POOL, PLAN.model, actors=PLAN.actors).model_copy(update={"backoff_s": 0.0, **endpoint})
    role = {"endpoint": "eyes", "model": "hub/eyes"}
    return Config.model_validate({"models": {"endpoints": {"eyes": eyes.model_dump()}, "roles": {"judge": role}}})


async def ask(config: Config, questions: list[str], lake: Lake | None = None) -> list[Any]:
    connections = connect(config.services, {}, (), config.models, ["judge"])
    if lake is not None:
        calls = StageCalls(lake, config.models, config.spread, "curate.judge", "run")
        connections = connections.sharing(shared_rate_budget(lake, config.spread), calls.log)
    chat = Chat(connections.chat)
    try:
        asked = [chat.complete("judge", [{"role": "user", "content": one}], max_tokens=8) for one in questions]
        return await asyncio.gather(*asked)
    finally:
        await chat.close()
        if lake is not None:
            calls.commit()


async def test_requests_go_to_the_actors_in_turn_and_are_stored_once(actors: SimpleNamespace, tmp_path: Path) -> None:
    lake, questions = Lake(tmp_path / "lake"), [f"where {n}" for n in range(6)]
    replies = await ask(configured(), questions, lake)
    assert {reply.text for reply in replies} == {"yes"} and replies[0].usage.completion_tokens == 2
    assert {name for name, _ in actors.asked} == set(PLAN.actors), "both replicas"
    assert sorted(text for _, text in actors.asked) == questions
    await ask(configured(), questions, lake)
    assert len(actors.asked) == 6, "a second run asks nothing again"
    assert lake.read("calls").height == 6


async def test_a_lost_actor_is_asked_again_and_a_refused_request_is_not(actors: SimpleNamespace) -> None:
    lost = iter([True, True])

    def answer(name: str, request: dict[str, Any]) -> tuple[int, bytes]:
        if next(lost, False):
            raise RayActorError
        return 200, completion("back")

    actors.answer = answer
    [reply] = await ask(configured(), ["where"])
    assert reply.text == "back" and reply.usage.requests == 3

    actors.asked.clear()
    actors.answer = lambda name, request: (400, b'{"error": {"message": "the prompt is longer than max_model_len=64"}}')
    with pytest.raises(ServiceError, match="longer than max_model_len=64") as error:
        await ask(configured(), ["where"])
    assert error.value.kind == "rejected" and len(actors.asked) == 1


async def test_an_actor_that_does_not_answer_in_time_is_a_timeout(actors: SimpleNamespace) -> None:
    actors.answer = None
    never: Future[Any] = Future()
    ray.get_actor = lambda *_, **__: SimpleNamespace(  # type: ignore[assignment]  # put back by the fixture
        complete=SimpleNamespace(remote=lambda body: SimpleNamespace(future=lambda: never))
    )
    with pytest.raises(ServiceError, match=r"no answer within 0\.05 s \(total_timeout_s\)") as error:
        await ask(configured(total_timeout_s=0.05, max_attempts=1), ["where"])
    assert error.value.kind == "timeout"


def test_transports_of_one_pool_do_not_meet_and_answers_are_shared() -> None:
    http = PoolPlan("eyes", POOL.model_copy(update={"transport": "http"}), "hub/eyes", "hub/eyes")
    assert http.application != PLAN.application and http.actors == () and len(PLAN.actors) == 2
    assert POOL.identity() == http.settings.identity(), "what is stored does not depend on the way it was asked"
    options = PLAN.options()
    assert "tool_call_parser" not in options["engine_args"] and options["resources"] == {"num_cpus": 1, "num_gpus": 0}
    assert "tool_call_parser" in http.options()["engine_args"]
    with pytest.raises(ValueError, match="transport: ray is of engine vllm"):
        Pool(engine="embedded", transport="ray")
