"""The HTTP face: /health, /v1/models and /v1/chat/completions, in OpenAI's shapes."""

import argparse
import asyncio
import hmac
import importlib
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from infra.lifeline import exit_when_stdin_closes, serve_at
from infra.serve.batcher import Batcher, Waiting
from infra.serve.request import ChatRequest, Refused, conversation, read_request
from schemas.extras import MissingExtra, require_extras
from schemas.settings.endpoint import is_loopback
from tasks.agent.tagged import split_calls
from tasks.runtime.request_deadline import REQUEST_S, DeadlineProtocol

if TYPE_CHECKING:
    from infra.serve.model import Answer, Model, Question

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_WAITING = 256
_TOOL_NAME = re.compile(r"[\w.-]{1,64}")


class Service:
    """One model behind HTTP. Requests wait in line and are answered together where they are sampled alike."""

    def __init__(self, model: "Model", name: str, key: str | None = None, host: str = "") -> None:
        """`host` is the name by which it is queried besides loopback's, as on a cluster."""
        self._model, self._name, self._key, self._host = model, name, key, host
        self._batcher = Batcher(model)
        self._waiting = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ],
            exception_handlers={Refused: refusal, HTTPException: no_such_thing, Exception: _broken},
        )

    async def health(self, request: Request) -> JSONResponse:
        check_sender(request, self._host)
        return JSONResponse({"service": "geofix-serve", "model": self._name})

    async def models(self, request: Request) -> JSONResponse:
        self._check_key(request)
        return JSONResponse(
            {"object": "list", "data": [{"id": self._name, "object": "model", "created": 0, "owned_by": "geofix"}]}
        )

    async def chat(self, request: Request) -> JSONResponse:
        self._check_key(request)
        chat_request = read_request(await read_body(request))
        if chat_request.model != self._name:
            raise Refused(404, f"model '{chat_request.model[:100]}' is not served here", "model_not_found", "model")
        if self._waiting >= MAX_WAITING:
            raise Refused(503, "too many requests are waiting", "overloaded")
        self._waiting += 1
        try:
            answer = await asyncio.wrap_future(self._batcher.submit(self._waiting_for(chat_request)))
        finally:
            self._waiting -= 1
        return JSONResponse(_completion(chat_request, answer))

    def _waiting_for(self, chat_request: ChatRequest) -> Waiting:
        from tasks.train.rollouts.sampling import Sampling

        def read() -> "Question":
            messages = conversation(chat_request, self._model.min_pixels, self._model.max_pixels)
            return self._model.read(messages, chat_request.tools, chat_request.token_limit, chat_request.seed)

        return Waiting(read, Sampling(chat_request.temperature, chat_request.top_k, chat_request.top_p))

    def _check_key(self, request: Request) -> None:
        check_sender(request, self._host)
        header = request.headers.get("authorization", "").encode()
        if self._key is not None and not hmac.compare_digest(header, f"Bearer {self._key}".encode()):
            raise Refused(401, "Incorrect API key provided", "invalid_api_key")


def check_sender(request: Request, known: str) -> None:
    """Refuse what a page of another address makes a browser send, also one whose name was led to this machine."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not is_loopback(f"http://{host}") and (not known or urlsplit(f"http://{host}").hostname != known.lower()):
        raise Refused(403, f"asked for as '{host[:100]}'; it answers as 127.0.0.1 and localhost only", "wrong_host")
    if origin not in (None, f"http://{host}"):
        raise Refused(403, "pages of other addresses are not answered", "wrong_origin")


async def read_body(request: Request) -> bytes:
    """The body, if it is neither too large nor too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(REQUEST_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(413, f"the request is larger than {MAX_BODY_BYTES} bytes", "too_large")
    except TimeoutError:
        raise Refused(408, f"the request did not come within {REQUEST_S:.0f} s", "timeout") from None
    return bytes(body)


def _completion(chat_request: ChatRequest, answer: "Answer") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    finish_reason = answer.finish_reason
    text, calls = split_calls(answer.text.rstrip("\n")) if chat_request.tools else (answer.text, [])
    if calls and all(_TOOL_NAME.fullmatch(name) for name, _ in calls):
        message["content"] = text or None
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:16]}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for name, arguments in calls
        ]
        finish_reason = "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    if chat_request.return_token_ids:
        choice["token_ids"] = list(answer.ids)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": chat_request.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": len(answer.ids),
            "total_tokens": answer.prompt_tokens + len(answer.ids),
        },
    }


async def no_such_thing(request: Request, error: Exception) -> JSONResponse:
    """The answer to an address that is not served."""
    assert isinstance(error, HTTPException)
    return await refusal(request, Refused(error.status_code, f"{error.detail}: {request.url.path}", "unknown_url"))


async def _broken(request: Request, error: Exception) -> JSONResponse:
    # The traceback is in the log; a client learns only that it is not to blame.
    return await refusal(request, Refused(500, f"the model failed: {type(error).__name__}", "server_error"))


async def refusal(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that is refused."""
    assert isinstance(error, Refused)
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    shape = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse({"error": shape}, status_code=error.status, headers=headers)


def served_app(
    folder: Path, name: str, threads: int = 1, max_context: int = 8192, key: str | None = None, host: str = ""
) -> Starlette:
    """The application that serves a checkpoint under a name."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from infra.serve.model import Model  # torch takes seconds to import; a wrong option is told at once

    return Service(Model(folder.resolve(), threads, max_context), name, key, host).app()


def _read_order(options: argparse.Namespace) -> bool:
    """Import what serving needs, then take `model` and `name` from a line of JSON; false if the starter ended."""
    importlib.import_module("infra.serve.model")
    line = sys.stdin.buffer.readline()
    if line:
        order = json.loads(line)
        options.model, options.name = Path(order["model"]), order["name"]
    return bool(line)


def main(arguments: list[str] | None = None) -> int:
    """Serve until stopped; the exit code says whether it could."""
    parser = argparse.ArgumentParser(prog="python -m infra.serve", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a vision-language checkpoint (default: told by a line)")
    parser.add_argument("--name", help="name it is served under (default: the folder's)")
    parser.add_argument("--port", type=int, default=8761)
    parser.add_argument("--listening-fd", type=int, help="serve on this open socket instead")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more only pay for large models")
    parser.add_argument("--max-context", type=int, default=32_768, help="tokens of prompt and answer together, at most")
    parser.add_argument("--key-env", help="environment variable with the key clients must send (default: no key)")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    options = parser.parse_args(arguments)
    try:
        require_extras("serving a checkpoint", "train")
    except MissingExtra as error:
        print(f"geofix: {error}", file=sys.stderr)
        return 1
    if options.model is None and not _read_order(options):
        return 0
    if options.lifeline:
        exit_when_stdin_closes()
    if not (options.model / "config.json").is_file():
        print(f"{options.model} is not a checkpoint: it has no config.json", file=sys.stderr)
        return 1
    key = os.environ.get(options.key_env, "") if options.key_env else None
    if key == "":
        print(f"{options.key_env} is not set, but --key-env asks for it", file=sys.stderr)
        return 1
    name = options.name or options.model.resolve().name
    app = served_app(options.model, name, options.threads, options.max_context, key)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False}
    config = uvicorn.Config(app, host="127.0.0.1", port=options.port, http=DeadlineProtocol, **quiet)
    serve_at(uvicorn.Server(config), options.listening_fd)
    return 0
