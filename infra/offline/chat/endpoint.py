"""The two routes of the chat service: completions and the list of models."""

from __future__ import annotations

import json
import random
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from infra.offline.chat import agent, answerer, consistency, embeddings, judge, observer, planner, verifier
from infra.offline.chat.errors import ChatError, bad
from infra.offline.chat.protocol import ChatRequest, read_request
from infra.offline.chat.reply import Reply, completion, prompt_tokens, stream
from infra.offline.chat.variants import VARIANTS, base_name, speak_as
from infra.offline.computing import compute

KEY = re.compile(r"sk-[A-Za-z0-9_-]{4,200}")
CREATED = 1_762_000_000


@dataclass(frozen=True)
class Model:
    """A served model: what it says to a request, given its own source of rng."""

    speak: Callable[[ChatRequest, random.Random], Reply]
    takes_pictures: bool


MODELS: dict[str, Model] = {
    "agent": Model(agent.speak, True),
    "proposer": Model(agent.speak, True),
    "writer": Model(agent.speak, True),
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
        Route(f"{prefix}/embeddings", embed, methods=["POST"]),
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
    limits = _limits.after(prompt_tokens(asked))
    if asked.stream:
        return StreamingResponse(stream(asked, replies), media_type="text/event-stream", headers=limits)
    return JSONResponse(completion(asked, replies), headers=limits)


async def embed(request: Request) -> Response:
    try:
        check_key(request)
    except ChatError as error:
        return error.response()
    return await embeddings.embed(request)


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
        if name not in _takes_pictures():
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


def answer(body: bytes) -> dict[str, Any]:
    """The completion object for a request's body, without a server around it."""
    return completion(*_answer(body))


def _answer(body: bytes) -> tuple[ChatRequest, list[Reply]]:
    try:
        parsed = json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise bad("We could not parse the JSON body of your request. (HINT: check for a trailing comma.)") from None
    request = read_request(parsed, _takes_pictures())
    name, variant = base_name(request.model)
    speak = MODELS[name].speak
    return request, [speak_as(variant, speak, request, chance(request, index)) for index in range(request.choices)]


@lru_cache(maxsize=1)
def _takes_pictures() -> dict[str, bool]:
    """Every name a request may give, with whether that model takes pictures."""
    names = list(MODELS.items())
    variants = [(f"{name}:{variant}", model) for name, model in names for variant in VARIANTS]
    return {name: model.takes_pictures for name, model in [*names, *variants]}


class _Limits:
    """The rate-limit headers of a vendor. Nothing is refused by them: a 429 is a fault, and asked for."""

    REQUESTS, TOKENS, WINDOW_S = 10_000, 30_000_000, 60.0

    def __init__(self) -> None:
        self.began, self.requests, self.tokens = time.monotonic(), 0, 0

    def after(self, tokens: int) -> dict[str, str]:
        """The headers once a request of n tokens is counted."""
        spent = time.monotonic() - self.began
        if spent >= self.WINDOW_S:
            self.began, self.requests, self.tokens, spent = time.monotonic(), 0, 0, 0.0
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        reset = f"{max(0.0, self.WINDOW_S - spent):.3f}s"
        return {
            "x-request-id": f"req_{secrets.token_hex(16)}",
            "x-ratelimit-limit-requests": str(self.REQUESTS),
            "x-ratelimit-remaining-requests": str(max(0, self.REQUESTS - self.requests)),
            "x-ratelimit-reset-requests": reset,
            "x-ratelimit-limit-tokens": str(self.TOKENS),
            "x-ratelimit-remaining-tokens": str(max(0, self.TOKENS - self.tokens)),
            "x-ratelimit-reset-tokens": reset,
        }


_limits = _Limits()


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
