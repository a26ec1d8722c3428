"""Every model, over the OpenAI protocol: chat completions and embeddings.

Requests go by the official client. It sends over the loop's aiohttp session (`transport.py`), as a transport of the
library it is built on, so that limits of size and time, certificates, proxies and errors without secrets are the same
for all services. Its own retries are off: budgets, retries and breakers are those of `HttpClient`. Bodies are bytes
that are written once, and replies are read here: parsing by the official client takes 3 ms of CPU a request.

Where an endpoint names actors, requests go to them through Ray (`RayActors`), and only the way differs.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from schemas.errors import StageRefused
from schemas.messages import ChatReply, Message, Usage
from schemas.settings.pools import NAMESPACE
from schemas.settings.services import Price
from tasks.services.calls import CallLog, identify
from tasks.services.chat_reply import (
    LONGEST_ANSWER,
    BadReply,
    answer_tokens,
    part,
    question_tokens,
    read_reply,
    read_usage,
)
from tasks.services.connections import ChatConnection, Models, Target
from tasks.services.errors import HttpResponse, Kind, ServiceError, error_by_status, safe_text, safe_url, said_at
from tasks.services.http import Expected, HttpClient, PaidCall
from tasks.services.meter import count
from tasks.services.transport import Connection, HttpRequest, HttpTransport

if TYPE_CHECKING:
    import openai


class RayActors:
    """Sends each request to the next of some named actors (`tasks/runtime/on_ray/engine_actor.py`)."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self._service, self._total_s = connection.service, connection.endpoint.total_timeout_s
        self._names = itertools.cycle(names)
        self._found: dict[str, Any] = {}

    async def send(self, request: HttpRequest, answered: Callable[[float], None]) -> HttpResponse:
        """The actor's response; ServiceError where it is gone or too slow."""
        from ray.exceptions import RayError

        name, sent_at_s = next(self._names), time.monotonic()
        try:
            reply_ref = self._actor(name).complete.remote(request.body)
            status, body = await asyncio.wait_for(asyncio.wrap_future(reply_ref.future()), self._total_s)
        except TimeoutError:
            raise self._error("timeout", f"no answer within {self._total_s:g} s (total_timeout_s)", request) from None
        except (RayError, ValueError) as error:  # ValueError: there is no such actor at the moment
            self._found.pop(name, None)
            raise self._error("outage", f"the actor does not answer ({type(error).__name__})", request) from None
        answered(time.monotonic() - sent_at_s)
        count(self._service, request.kind, 1, len(body))
        return HttpResponse(status, "application/json", body, safe_url(request.url))

    def _actor(self, name: str) -> Any:
        import ray

        if name not in self._found:
            self._found[name] = ray.get_actor(name, namespace=NAMESPACE)
        return self._found[name]

    def _error(self, kind: Kind, what: str, request: HttpRequest) -> ServiceError:
        return ServiceError(self._service, kind, safe_text(f"{what}: {safe_url(request.url)}"), retryable=True)


_THEIR_HEADERS = ("Authorization", "OpenAI-Organization", "OpenAI-Project")  # of the official client, beside ours
_sending: ContextVar[tuple[HttpRequest, Callable[[float], None]]] = ContextVar("sending")
# What an error object under status 200 says, and whether asking again can help.
_SAID: tuple[tuple[tuple[str, ...], Kind, bool], ...] = (
    (("insufficient_quota",), "quota", False),
    (("rate_limit", "rate limit", "too many requests"), "rate_limit", True),
    (("overloaded", "too busy", "unavailable", "server_error"), "outage", True),
)


class MalformedCall(ServiceError):
    """The model wrote a tool call that its server could not read, and the server answers with an error."""

    def __init__(self, service: str, message: str, status: int, written: str) -> None:
        super().__init__(service, "bad_response", message, status=status)
        self.written = written  # by the model


class OpenAIServer:
    """One server that speaks the OpenAI protocol."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        actors: tuple[str, ...] = getattr(connection.endpoint, "actors", ())
        send = RayActors(connection, actors).send if actors else self._send
        self.http = HttpClient(connection, send=send, **http_options)
        self._expected = Expected(classify=self._classify, check=self._check_error)
        self._client: openai.AsyncOpenAI | None = None
        self._only_model: str | None = None
        self._share = 0.5  # of the most tokens that a request may have, what requests here usually have

    async def complete(
        self,
        target: Target,
        model: str,
        messages: Sequence[Message],
        messages_json: bytes,
        fields: Mapping[str, Any],
        call_id: str = "",
    ) -> ChatReply:
        """One request; `fields` are all of its body but model and messages."""
        most = 0
        if getattr(self.http.endpoint, "tokens_per_minute", None):
            most = question_tokens(messages, fields.get("tools")) + answer_tokens(fields)
        others = orjson.dumps({"model": model, **fields})
        try:
            completion, response = await self.http.request_json(
                "POST",
                "/chat/completions",
                body=b'{"messages":' + messages_json + b"," + others[1:],
                expected=self._expected,
                paid=PaidCall(call_id, most * self._share),
            )
        except MalformedCall as error:
            usage = Usage(0, 0, None if target.price is None else 0.0, error.attempts or 1)
            return ChatReply(error.written, (), "stop", usage, model, call_id=call_id)
        usage = read_usage(completion, target.price, response.attempts)
        if most and usage.tokens:
            self._share = 0.9 * self._share + 0.1 * usage.tokens / most
        try:
            return read_reply(completion, model, usage, bool(fields.get("tools")), call_id)
        except BadReply as error:
            bad = self._bad(str(error))
            bad.usage, bad.attempts = usage, usage.requests
            raise bad from None

    async def embed(
        self, model: str, texts: Sequence[str], price: Price | None = None
    ) -> tuple[NDArray[np.float64], Usage]:
        """The vectors of texts, one row a text, in the order of the texts, and what they used."""
        # An empty text is refused by the protocol; a space has a vector, and no level compares it.
        body = {"model": model, "input": [text or " " for text in texts], "encoding_format": "float"}
        value, response = await self.http.request_json("POST", "/embeddings", body=body, expected=self._expected)
        try:
            ordered = sorted(part(value, "data") or [], key=lambda row: int(row["index"]))
            vectors = np.array([row["embedding"] for row in ordered], dtype=np.float64)
        except (KeyError, TypeError, ValueError):
            raise self.http.bad_response("no list of vectors under 'data'", response) from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise self.http.bad_response(f"not one vector for each of {len(texts)} texts", response)
        return vectors, read_usage(value, price, response.attempts)

    async def models(self) -> list[str]:
        """Names of the models served."""
        value, _ = await self.http.request_json("GET", "/models", expected=self._expected)
        rows = part(value, "data")
        names = [part(row, "id") for row in rows] if isinstance(rows, list) else [None]
        if not all(isinstance(name, str) for name in names):
            raise self._bad("no list of models", "/models")
        return [str(name) for name in names]

    async def only_model(self) -> str:
        """The name of the one model that is served."""
        if self._only_model is None:
            names = await self.models()
            if len(names) != 1:
                raise self._bad(f"{len(names)} models are served and none is named", "/models")
            self._only_model = names[0]
        return self._only_model

    async def close(self) -> None:
        await self.http.close()

    async def _send(self, request: HttpRequest, answered: Callable[[float], None]) -> HttpResponse:
        """Send by the official client."""
        import httpx2
        import openai

        if self._client is None:
            self._client = _official_client(self.http.endpoint.base_url, self.http.secrets, self.http.transport)
        _sending.set((request, answered))
        try:
            if request.body is None:
                raw = await self._client.get(request.url, cast_to=httpx2.Response)
            else:
                raw = await self._client.post(request.url, cast_to=httpx2.Response, content=request.body)
        except openai.APIStatusError as error:
            raw = error.response
        response: HttpResponse = raw.extensions["response"]
        return response

    def _classify(self, response: HttpResponse) -> ServiceError | None:
        """OpenAI says 429 for two things, of which only one passes by waiting."""
        try:
            error = part(response.json(), "error")
        except ValueError:
            return None
        if response.status == 429 and part(error, "code") == "insufficient_quota":
            message = safe_text(str(part(error, "message") or ""), self.http.secrets)
            return ServiceError(self.http.service, "quota", said_at(message, response.url), status=429)
        if response.status == 400 and part(error, "code") == "tool_use_failed":  # Groq
            written = part(error, "failed_generation")
            text = written if isinstance(written, str) else ""
            return MalformedCall(self.http.service, said_at("a malformed tool call", response.url), 400, text)
        return None

    def _check_error(self, value: Any, response: HttpResponse) -> None:
        """Raise the error that some servers send under status 200, in the vendor's own words."""
        error = part(value, "error")
        if not error or part(value, "choices"):
            return
        code = part(error, "code")
        text = part(error, "message") or (error if isinstance(error, str) else "an error without a message")
        detail = safe_text(str(text), self.http.secrets)
        if isinstance(code, int) and 400 <= code < 600:
            by_status = error_by_status(self.http.service, replace(response, status=code, body=b""), self.http.secrets)
            kind, retryable = by_status.kind, by_status.retryable
        else:
            words = f"{part(error, 'type')} {code} {part(value, 'error_type')} {detail}".lower()
            known = ((kind, again) for wanted, kind, again in _SAID if any(word in words for word in wanted))
            kind, retryable = next(known, ("bad_response", False))
        message = said_at(detail, response.url)
        raise ServiceError(self.http.service, kind, message, status=response.status, retryable=retryable)

    def _bad(self, what: str, path: str = "/chat/completions") -> ServiceError:
        message = f"{safe_text(what, self.http.secrets)}: {self.http.endpoint.base_url}{path}"
        return ServiceError(self.http.service, "bad_response", message, status=200)


def _official_client(base_url: str, secrets: tuple[str, ...], transport: HttpTransport) -> "openai.AsyncOpenAI":
    """The official client over the loop's aiohttp session.

    Its own session would decompress without a limit and call a connection that is closed a timeout.
    """
    import httpx2
    import openai

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every request

    class OverSession(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            http_request, answered = _sending.get()
            theirs = {name: request.headers[name] for name in _THEIR_HEADERS if name in request.headers}
            if not secrets:
                theirs.pop("Authorization", None)
            response = await transport.send(replace(http_request, headers={**http_request.headers, **theirs}), answered)
            return httpx2.Response(response.status, request=request, extensions={"response": response})

    http_client = openai.DefaultAioHttpClient(transport=OverSession(), follow_redirects=False, trust_env=False)
    key = secrets[0] if secrets else "none"
    return openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=http_client)


def no_price(role: str, model: str | None) -> str:
    """Why a role cannot be queried within a money budget."""
    return (
        f"models.budget_usd is set, but what role '{role}' (model '{model or role}') costs is not known: give "
        f"models.roles.{role}.price.prompt and .completion, US dollars for a million tokens, or leave the budget out"
    )


def _limited(target: Target, fields: dict[str, Any]) -> dict[str, Any]:
    """With a longest answer: without one, what a call may cost has no limit."""
    limit = target.settings.token_limit
    return fields if limit in fields or "max_tokens" in target.settings.omit else {**fields, limit: LONGEST_ANSWER}


class Chat:
    """Replies of models by role, with what they used."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        self._default = connection.service
        models = connection.models if isinstance(connection, ChatConnection) else Models()
        self._models = replace(models, endpoints={**models.endpoints, self._default: connection})
        self._http_options = http_options
        self._servers: dict[str, OpenAIServer] = {}
        self._targets: dict[str, Target] = {}  # by role

    async def complete(
        self,
        role: str,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        n: int = 1,
        top_p: float | None = None,
        top_k: int | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        extra_body: dict[str, Any] | None = None,
        trial: int | None = None,
    ) -> ChatReply:
        """The next message of the role's model. What is not given is as the role says; temperature then is 0.

        With `n` above 1 the further choices are the reply's `alternatives`. Where calls are stored, a request that was
        answered before is answered from the store; `trial` is not sent, and tells apart requests that are meant to be
        answered several times. A sampled request without seed and trial is always sent.
        """
        target = self._targets.get(role) or self._models.target(role, self._default)
        self._targets[role] = target
        options: dict[str, Any] = {
            "tools": list(tools) if tools else None,
            "response_format": response_format,
            "temperature": temperature,
            "seed": seed,
            "max_tokens": max_tokens,
            "n": n,
            "top_p": top_p,
            "top_k": top_k,
            "tool_choice": tool_choice if tools else None,
            "extra_body": extra_body,
        }
        fields, body = target.parameters(options)
        server, log = self._server(target.endpoint), self._models.calls
        model = target.model or await server.only_model()
        messages_json = orjson.dumps(list(messages))  # the pictures are in it: written, and hashed, once
        if log is None:
            return await server.complete(target, model, messages, messages_json, {**fields, **body})
        endpoint = server.http.endpoint
        base_url = getattr(endpoint, "identity_url", None) or endpoint.base_url
        request = identify(role, target.endpoint, base_url, model, messages_json, {**fields, **body}, trial, seed)
        if log.budget_usd is not None:
            fields = _limited(target, fields)
        return await log.once(
            request,
            self._most_usd(target, log, messages, fields),
            lambda call_id: server.complete(target, model, messages, messages_json, {**fields, **body}, call_id),
            unpaid=Usage(cost_usd=None if target.price is None else 0.0),
        )

    def _most_usd(self, target: Target, log: CallLog, messages: Sequence[Message], fields: Mapping[str, Any]) -> float:
        """What a call may cost at most, where there is a budget to keep to."""
        if log.budget_usd is None:
            return 0.0
        if target.price is None:
            raise StageRefused(no_price(target.role, target.model))
        return target.price.of(question_tokens(messages, fields.get("tools")), answer_tokens(fields))

    async def embed(self, role: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """The vectors of texts by the role's model, one row a text; requested, counted and paid for like a reply."""
        target = self._models.target(role, self._default)
        server, log = self._server(target.endpoint), self._models.calls
        model = target.model or await server.only_model()

        async def ask(call_id: str = "") -> ChatReply:
            vectors, usage = await server.embed(model, texts, target.price)
            return ChatReply(orjson.dumps(vectors.tolist()).decode(), usage=usage, model=model, call_id=call_id)

        if log is None:
            return np.array(orjson.loads((await ask()).text), dtype=np.float64)
        messages: list[Message] = [{"role": "user", "content": text} for text in texts]
        base_url, fields = server.http.endpoint.base_url, {"temperature": 0, "object": "embedding"}
        request = identify(role, target.endpoint, base_url, model, orjson.dumps(messages), fields, None, None)
        most_usd = self._most_usd(target, log, messages, {"max_tokens": 1})
        reply = await log.once(request, most_usd, ask, unpaid=Usage(cost_usd=None if target.price is None else 0.0))
        return np.array(orjson.loads(reply.text), dtype=np.float64)

    async def models(self, endpoint: str | None = None) -> list[str]:
        """Names of the models that an endpoint serves."""
        return await self._server(endpoint or self._default).models()

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()

    def _server(self, endpoint: str) -> OpenAIServer:
        if endpoint not in self._servers:
            self._servers[endpoint] = OpenAIServer(self._models.endpoints[endpoint], **self._http_options)
        return self._servers[endpoint]
