"""The two routes of the chat service: completions and the list of models."""

from __future__ import annotations

import json
import random
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from infra.offline.chat import answerer, consistency, judge, observer, planner, verifier
from infra.offline.chat.errors import ChatError, bad
from infra.offline.chat.protocol import ChatRequest, read_request
from infra.offline.chat.reply import Reply, completion, stream
from infra.offline.computing import compute

KEY = re.compile(r"sk-[A-Za-z0-9_-]{4,200}")
CREATED = 1_762_000_000


@dataclass(frozen=True)
class Model:
    """A served model: what it says to a request, given its own source of rng."""

    speak: Callable[[ChatRequest, random.Random], Reply]
    takes_pictures: bool


MODELS: dict[str, Model] = {
    "observer": Model(observer.speak, True),
    "planner": Model(planner.speak, False),
    "judge": Model(judge.speak, True),
    "verifier": Model(verifier.speak, True),
    "consistency": Model(consistency.speak, False),
    "answerer-small": Model(answerer.small, True),
    "answerer-base": Model(answerer.base, True),
    "answerer-large": Model(answerer.large, True),
}


def routes(prefix: str = "/openai/v1") -> list[Route]:
    """The routes to mount; `prefix` is where the API's base URL points."""
    return [
        Route(f"{prefix}/chat/completions", complete, methods=["POST"]),
        Route(f"{prefix}/models", list_models, methods=["GET"]),
        Route(f"{prefix}/models/{{name}}", show_model, methods=["GET"]),
    ]


async def complete(request: Request) -> Response:
    try:
        check_key(request)
        body = await request.body()
        asked, replies = await compute(_answer, body)
    except ChatError as error:
        return error.response()
    if asked.stream:
        return StreamingResponse(stream(asked, replies), media_type="text/event-stream")
    return JSONResponse(completion(asked, replies))


async def list_models(request: Request) -> Response:
    try:
        check_key(request)
    except ChatError as error:
        return error.response()
    return JSONResponse({"object": "list", "data": [_card(name) for name in MODELS]})


async def show_model(request: Request) -> Response:
    name = request.path_params["name"]
    try:
        check_key(request)
        if name not in MODELS:
            raise ChatError(404, f"The model '{name}' does not exist", param="model", code="model_not_found")
    except ChatError as error:
        return error.response()
    return JSONResponse(_card(name))


def check_key(request: Request) -> None:
    """Refuses a request without a bearer key of the right shape; the key itself is never repeated."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        text = "You didn't provide an API key. Provide it in an Authorization header as Bearer auth."
        raise ChatError(401, text)
    if not KEY.fullmatch(key.strip()):
        raise ChatError(401, "Incorrect API key provided.", code="invalid_api_key")


def _answer(body: bytes) -> tuple[ChatRequest, list[Reply]]:
    try:
        parsed = json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise bad("We could not parse the JSON body of your request. (HINT: check for a trailing comma.)") from None
    request = read_request(parsed, {name: model.takes_pictures for name, model in MODELS.items()})
    speak = MODELS[request.model].speak
    return request, [speak(request, chance(request, index)) for index in range(request.choices)]


def chance(request: ChatRequest, index: int) -> random.Random:
    """The dice of one choice: fixed by the question at temperature 0, by question and seed above it.

    Without a seed a sampled answer differs from call to call, as it does upstream.
    """
    if request.temperature == 0:
        return random.Random(request.fingerprint)
    seed = request.seed if request.seed is not None else secrets.randbits(64)
    return random.Random(f"{request.fingerprint}/{seed}/{index}")


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "geofix-offline"}
