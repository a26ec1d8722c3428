"""A pool under real Ray Serve: asked in words and pictures over sockets, a replica killed, put away.

With the embedded engine (`make test-slow`), and with real vLLM on CPUs (`make test-vllm`), whose greedy answers are
those of the embedded server.
"""

import asyncio
import base64
import io
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from PIL import Image
from starlette.testclient import TestClient

from flows.pools import RunPools
from infra.serve.server import served_app
from schemas.config import Config
from schemas.messages import ChatReply
from tasks.lake import Lake
from tasks.runtime.calls import StageCalls
from tasks.runtime.on_ray.budget_actor import shared_rate_budget
from tasks.runtime.on_ray.start import stop_ray
from tasks.services import Chat, connect

# Pictures of 4 merged patches, within the limits of the checkpoint: neither server resizes them.
SIDE = 56
ENGINES = {
    "embedded": {"engine": "embedded"},
    "vllm": {
        "engine_args": {"enforce_eager": True, "max_model_len": 512, "max_num_seqs": 16},
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        "start_s": 3600,
    },
}
ENGINES["ray"] = {**ENGINES["vllm"], "transport": "ray"}


def question(number: int) -> list[dict[str, Any]]:
    """Every fourth one has a picture."""
    words = f"Where was picture {number} taken? Latitude: {number / 7:.3f}"
    if number % 4:
        return [{"role": "user", "content": words}]
    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (number * 5 % 256, 90, 200 - number)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": words}]}
    ]


async def ask(chat: Chat, numbers: Sequence[int], meanwhile: Any = None) -> list[ChatReply]:
    try:
        asked = [asyncio.ensure_future(chat.complete("judge", question(n), max_tokens=8)) for n in numbers]
        if meanwhile is not None:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            meanwhile()
        return await asyncio.gather(*asked)
    finally:
        await chat.close()


def body(model: str, number: int) -> dict[str, Any]:
    return {"model": model, "messages": question(number), "max_tokens": 8, "temperature": 0, "return_token_ids": True}


def by_the_pool(base_url: str, model: str, numbers: Sequence[int]) -> list[list[int]]:
    """The tokens of its greedy answers: texts of a model with random weights are no proper UTF-8."""

    async def all_of_them() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=base_url, timeout=600, trust_env=False) as client:
            posts = [client.post("/chat/completions", json=body(model, number)) for number in numbers]
            return [
                answer.raise_for_status().json()["choices"][0]["token_ids"] for answer in await asyncio.gather(*posts)
            ]

    return asyncio.run(all_of_them())


def by_actors(names: Sequence[str], model: str, numbers: Sequence[int]) -> list[list[int]]:
    """The same of a pool that is asked through Ray."""
    actor = ray.get_actor(names[0], namespace="geofix")
    answers = ray.get([actor.complete.remote(json.dumps(body(model, number)).encode()) for number in numbers])
    assert {status for status, _ in answers} == {200}, answers[0]
    return [json.loads(answer)["choices"][0]["token_ids"] for _, answer in answers]


def by_the_embedded_server(checkpoint: Path, numbers: Sequence[int]) -> list[list[int]]:
    client = TestClient(served_app(checkpoint, "tiny"), base_url="http://127.0.0.1")
    answers = [client.post("/v1/chat/completions", json=body("tiny", number)).json() for number in numbers]
    return [answer["choices"][0]["token_ids"] for answer in answers]


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("embedded", marks=pytest.mark.slow),
        pytest.param("vllm", marks=pytest.mark.vllm),
        pytest.param("ray", marks=pytest.mark.vllm),
    ],
)
def test_a_pool_answers_outlives_its_replica_and_is_put_away(engine: str, checkpoint: Path, tmp_path: Path) -> None:
    prompts = int(os.environ.get("GEOFIX_TEST_PROMPTS", "100"))
    settings = {"model": str(checkpoint), "engine": "vllm", "gpus": 0, "cpus": 0.5, **ENGINES[engine]}
    config = Config.model_validate({"models": {"pools": {"eyes": settings}, "roles": {"judge": {"endpoint": "eyes"}}}})
    lake = Lake(tmp_path / "lake")
    pools = RunPools(config, lake, ["curate"])
    try:
        pools.check()
        pools.ensure(pools.plans(["eyes"]))
        reachable = pools.configured(config)
        calls = StageCalls(lake, reachable.models, reachable.spread, "curate.judge", "run")
        connections = connect(reachable.services, {}, (), reachable.models, ["judge"])
        connection = connections.sharing(shared_rate_budget(lake, reachable.spread), calls.log).chat

        numbers = range(prompts)
        endpoint = reachable.models.endpoints["eyes"]
        found = (
            by_actors(endpoint.actors, str(checkpoint), numbers)
            if endpoint.actors
            else by_the_pool(endpoint.base_url, str(checkpoint), numbers)
        )
        assert found == by_the_embedded_server(checkpoint, numbers)
        replies = asyncio.run(ask(Chat(connection), numbers))
        assert {reply.model for reply in replies} == {str(checkpoint)} and all(reply.usage.tokens for reply in replies)

        more = range(prompts, prompts + 20)
        assert len(asyncio.run(ask(Chat(connection), more, kill_replica))) == 20
        calls.commit()
        rows = lake.read("calls")
        answered = rows.filter(rows["verdict"] != "gpu_seconds").filter(rows["reply_json"].is_not_null())
        assert answered.height == prompts + 20 == answered["call_id"].n_unique(), "nothing is stored twice"

        pools.put_away()
        until_s = time.monotonic() + 120
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            assert time.monotonic() < until_s, "the replica still holds its CPUs"
            time.sleep(0.5)
    finally:
        pools.close()
        stop_ray()


def kill_replica() -> None:
    """Kill the process that holds the model while it answers."""
    [name] = [
        one["name"]
        for one in ray.util.list_named_actors(all_namespaces=True)
        if one["name"].startswith(("SERVE_REPLICA::geofix-eyes", "geofix-eyes")) and "OpenAiIngress" not in one["name"]
    ]
    namespace = "serve" if name.startswith("SERVE") else "geofix"
    ray.kill(ray.get_actor(name, namespace=namespace), no_restart=False)
