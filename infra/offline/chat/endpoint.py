"""The routes of the chat service: completions, embeddings and the list of models."""

import json
import math
import random
import re
import secrets
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.chat import agent, answerer, brief, consistency, judge, observer, verifier
from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.protocol import ChatError, ChatRequest, Reply, bad, completion, read_request
from infra.offline.computing import compute_in_thread
from infra.offline.words import fold

EMBEDDER, WIDTH = "embedder", 384
MOST_TEXTS, MOST_LETTERS = 2048, 8192
KEY = re.compile(r"sk-[A-Za-z0-9_-]{4,200}")
CUT = ":length"  # after a model's name: its replies end in the middle
CREATED = 1_762_000_000


_NAMED_TOOL = re.compile(r"\bcall the tool `(?P<name>[\w.-]{1,64})`(?: with the word (?P<word>\w{1,40}))?", re.I)


def _named_call(request: ChatRequest) -> Reply | None:
    """The call that the last message asks for in so many words, if the tool is offered."""
    last = request.messages[-1]
    match = _NAMED_TOOL.search(last.text) if last.role == "user" else None
    if match is None or match["name"] not in request.tools:
        return None
    parameters = request.tools[match["name"]]
    known = dict.fromkeys(parameters.get("properties") or {}, match["word"] or "ok")
    return Reply(calls=((match["name"], fill_schema(parameters, known)),))


Role = Callable[[ChatRequest, random.Random], Reply]
SIGHTED: dict[str, Role] = {
    "agent": agent.agent_reply,
    "observer": observer.observer_reply,
    "judge": judge.judge_reply,
    "verifier": verifier.verifier_reply,
    "answerer-small": partial(answerer.answerer_reply, skill=answerer.SMALL),
    "answerer-base": partial(answerer.answerer_reply, skill=answerer.BASE),
    "answerer-large": partial(answerer.answerer_reply, skill=answerer.LARGE),
}
READERS: dict[str, Role] = {  # of words alone
    "planner": agent.agent_reply,
    "street-finder": brief.brief_reply,
    "consistency": consistency.consistency_reply,
}
MODELS = SIGHTED | READERS


def chat_application() -> Starlette:
    """What is mounted where the API's base URL points."""
    served = [
        Route("/chat/completions", complete, methods=["POST"]),
        Route("/embeddings", embed, methods=["POST"]),
        Route("/models", list_models),
    ]
    return Starlette(routes=served, exception_handlers={ChatError: _refuse})


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ChatError)
    return error.response()


async def complete(request: Request) -> Response:
    check_key(request)
    chat_request, replies = await compute_in_thread(_answer, await request.body())
    return JSONResponse(completion(chat_request, replies))


async def list_models(request: Request) -> Response:
    check_key(request)
    card = {"object": "model", "created": CREATED, "owned_by": "geofix-offline"}
    return JSONResponse({"object": "list", "data": [{"id": name, **card} for name in (*MODELS, EMBEDDER)]})


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
    request = read_request(_parse(body), {f"{name}{end}": name in SIGHTED for name in MODELS for end in ("", CUT)})
    speak, call = MODELS[request.model.removesuffix(CUT)], _named_call(request)
    replies = [call or speak(request, random_for(request, index)) for index in range(request.choices)]
    if request.model.endswith(CUT):
        replies = [Reply((reply.content or "")[: len(reply.content or "") // 2], is_cut=True) for reply in replies]
    return request, replies


def random_for(request: ChatRequest, index: int) -> random.Random:
    """The dice of one choice: fixed by the question at temperature 0, by question and seed above it.

    Without a seed a sampled answer differs from call to call, as it does upstream.
    """
    if request.temperature == 0:
        return random.Random(request.fingerprint)
    seed = request.seed if request.seed is not None else secrets.randbits(64)
    return random.Random(f"{request.fingerprint}/{seed}/{index}")


async def embed(request: Request) -> Response:
    """The vectors of `input`, a text or a list of texts."""
    check_key(request)
    parsed = _parse(await request.body())
    if not isinstance(parsed, dict) or parsed.get("model") != EMBEDDER:
        raise ChatError(404, f"The only model here is {EMBEDDER!r}.", code="model_not_found")
    content = parsed.get("input")
    texts = [content] if isinstance(content, str) else content
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise bad("'input' must be a text or a list of texts, none of them empty.", "input")
    if len(texts) > MOST_TEXTS or any(len(text) > MOST_LETTERS for text in texts):
        raise bad(f"'input' holds more than {MOST_TEXTS} texts or one longer than {MOST_LETTERS}.", "input")
    rows = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
    tokens = sum(math.ceil(len(text) / 4) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": rows, "model": EMBEDDER, "usage": usage})


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise bad("We could not parse the JSON body of your request. (HINT: check for a trailing comma.)") from None


def vector(text: str) -> list[float]:
    """The text's groups of two and three letters, hashed to a unit vector."""
    padded = f" {fold(text)} "
    groups = (padded[at : at + size] for size in (2, 3) for at in range(max(1, len(padded) - size + 1)))
    cells = [zlib.crc32(group.encode("utf-8", "replace")) % WIDTH for group in groups]
    counts = np.bincount(cells, minlength=WIDTH)
    return [float(share) for share in counts / (np.linalg.norm(counts) or 1.0)]
