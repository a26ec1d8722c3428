"""Every model, over the OpenAI chat completions protocol: the `openai` client on top of our own transport.

The client builds requests and reads completions. Budgets, retries, breakers, limits of size and time, and the key stay
with `Http`: the client sends through a transport that hands each request to it.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

import httpx

from schemas.messages import ChatReply, Message, ToolCall, Usage
from schemas.settings.services import ChatEndpoint, Price
from tasks.services.answer import said_at
from tasks.services.errors import ServiceError, safe_text
from tasks.services.http import Answer, Connection, Http

_ATTEMPTS = "x-attempts"


class _Transport(httpx.AsyncBaseTransport):
    """Sends requests with `Http`; of the client's own headers none goes along."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _, answer = await self._http.request_json(
            request.method,
            str(request.url).removeprefix(self._http.endpoint.base_url),
            json_body=await request.aread() or None,
            classify=self._classify,
        )
        headers = {"content-type": "application/json", _ATTEMPTS: str(answer.attempts)}
        return httpx.Response(answer.status, headers=headers, content=answer.body)

    def _classify(self, answer: Answer) -> ServiceError | None:
        """OpenAI says 429 for two things, of which only one passes by waiting."""
        try:
            value = answer.json()
        except ValueError:
            return None
        error = value.get("error") if isinstance(value, dict) else None
        if answer.status == 429 and isinstance(error, dict) and error.get("code") == "insufficient_quota":
            said = safe_text(str(error.get("message", "")), self._http.secrets)
            return ServiceError("chat", "quota", said_at(said, answer.url), status=429)
        return None


class Chat:
    """Replies of chat models, with what they used."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        import openai  # takes 0.8 s, and most workers ask no model

        headers = {"Authorization": f"Bearer {connection.key.get_secret_value()}"} if connection.key else {}
        self._http = Http(connection, headers=headers, **http_options)
        endpoint = connection.endpoint
        self._prices = endpoint.prices if isinstance(endpoint, ChatEndpoint) else {}
        # Typed for httpx2, it takes a client of httpx as well.
        over_ours: Any = httpx.AsyncClient(transport=_Transport(self._http), trust_env=False)
        self._client = openai.AsyncOpenAI(
            api_key="sent by the transport", base_url=endpoint.base_url, max_retries=0, http_client=over_ours
        )

    async def complete(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
        temperature: float = 0,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> ChatReply:
        """The model's next message."""
        optional: dict[str, Any] = {
            "tools": list(tools) if tools else None,
            "response_format": response_format,
            "seed": seed,
            "max_tokens": max_tokens,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        raw = await self._client.chat.completions.with_raw_response.create(
            model=model, messages=cast(Any, list(messages)), temperature=temperature, **given
        )
        return self._reply(model, raw.parse(), int(raw.headers[_ATTEMPTS]))

    async def models(self) -> list[str]:
        """Names of the models served."""
        rows = getattr((await self._client.models.with_raw_response.list()).parse(), "data", None)
        names = [getattr(row, "id", None) for row in rows] if isinstance(rows, list) else [None]
        if not all(isinstance(name, str) for name in names):
            raise self._bad("no list of models", "/models")
        return [str(name) for name in names]

    async def close(self) -> None:
        await self._http.close()

    def _bad(self, what: str, path: str = "/chat/completions") -> ServiceError:
        return ServiceError("chat", "bad_response", f"{what}: {self._http.endpoint.base_url}{path}", status=200)

    def _reply(self, model: str, completion: Any, attempts: int) -> ChatReply:
        # The client believes what it is sent: absent parts are None, and wrong types stay as they came.
        choices = getattr(completion, "choices", None)
        first = choices[0] if isinstance(choices, list) and choices else None
        message = getattr(first, "message", None)
        if message is None:
            raise self._bad("no message under 'choices'")
        calls = getattr(message, "tool_calls", None) or []
        if not isinstance(calls, list):
            raise self._bad("'tool_calls' is not a list")
        return ChatReply(
            text=_text(getattr(message, "content", None)),
            tool_calls=tuple(self._tool_call(i, call) for i, call in enumerate(calls)),
            finish_reason=str(getattr(first, "finish_reason", None) or "stop"),
            usage=_usage(getattr(completion, "usage", None), self._prices.get(model, Price()), attempts),
            model=str(getattr(completion, "model", None) or model),
        )

    def _tool_call(self, position: int, call: Any) -> ToolCall:
        function = getattr(call, "function", None)
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
        if not isinstance(name, str):
            raise self._bad("a tool call without a function name")
        # Some servers send the arguments as an object although the protocol says text.
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        return ToolCall(id=str(getattr(call, "id", None) or f"call_{position}"), name=name, arguments=text)


def _text(content: Any) -> str:
    """The text of a reply's content, which is text, null or (with some servers) a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _usage(value: Any, price: Price, requests: int) -> Usage:
    def count(name: str) -> int:
        number = getattr(value, name, None)
        return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 0

    prompt, completion = count("prompt_tokens"), count("completion_tokens")
    cost_usd = (prompt * price.prompt + completion * price.completion) / 1_000_000
    return Usage(prompt, completion, cost_usd, requests)
