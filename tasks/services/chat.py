"""Every model, over the OpenAI chat completions protocol."""

import json
from collections.abc import Sequence
from typing import Any

from schemas.messages import ChatReply, Message, ToolCall, Usage
from schemas.settings.services import ChatEndpoint, Price
from tasks.services.errors import ServiceError, safe_text
from tasks.services.http import Answer, Connection, Http


class Chat:
    """Replies of chat models, with what they used."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        headers = {"Authorization": f"Bearer {connection.key.get_secret_value()}"} if connection.key else {}
        self._http = Http(connection, headers=headers, **http_options)
        endpoint = connection.endpoint
        self._prices = endpoint.prices if isinstance(endpoint, ChatEndpoint) else {}

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
        body: dict[str, Any] = {"model": model, "messages": list(messages), "temperature": temperature}
        optional: dict[str, Any] = {
            "tools": list(tools) if tools else None,
            "response_format": response_format,
            "seed": seed,
            "max_tokens": max_tokens,
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        value, answer = await self._http.request_json(
            "POST", "/chat/completions", json_body=body, classify=self._classify
        )
        return self._reply(model, value, answer)

    async def models(self) -> list[str]:
        """Names of the models served."""
        value, answer = await self._http.request_json("GET", "/models")
        rows = value.get("data") if isinstance(value, dict) else None
        if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("id"), str) for r in rows):
            raise self._http.bad_response("no list of models", answer)
        return [row["id"] for row in rows]

    async def close(self) -> None:
        await self._http.close()

    def _classify(self, answer: Answer) -> ServiceError | None:
        """OpenAI says 429 for two things, of which only one passes by waiting."""
        try:
            value = json.loads(answer.body)
        except ValueError:
            return None
        error = value.get("error") if isinstance(value, dict) else None
        if answer.status == 429 and isinstance(error, dict) and error.get("code") == "insufficient_quota":
            said = safe_text(f"{answer.url} said: {error.get('message', '')}", self._http.secrets)
            return ServiceError("chat", "quota", said, status=429)
        return None

    def _reply(self, model: str, value: Any, answer: Answer) -> ChatReply:
        choices = value.get("choices") if isinstance(value, dict) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        message = first.get("message") if isinstance(first, dict) else None
        if not isinstance(first, dict) or not isinstance(message, dict):
            raise self._http.bad_response("no message under 'choices'", answer)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise self._http.bad_response("'tool_calls' is not a list", answer)
        return ChatReply(
            text=_text(message.get("content")),
            tool_calls=tuple(self._tool_call(i, call, answer) for i, call in enumerate(calls)),
            finish_reason=str(first.get("finish_reason") or "stop"),
            usage=_usage(value.get("usage"), self._prices.get(model, Price()), answer.attempts),
            model=str(value.get("model") or model),
        )

    def _tool_call(self, position: int, call: Any, answer: Answer) -> ToolCall:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise self._http.bad_response("a tool call without a function name", answer)
        arguments = function.get("arguments")
        # Some servers send the arguments as an object although the protocol says text.
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        return ToolCall(id=str(call.get("id") or f"call_{position}"), name=function["name"], arguments=text)


def _text(content: Any) -> str:
    """The text of a reply's content, which is text, null or (with some servers) a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _usage(value: Any, price: Price, requests: int) -> Usage:
    def count(name: str) -> int:
        number = value.get(name) if isinstance(value, dict) else None
        return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 0

    prompt, completion = count("prompt_tokens"), count("completion_tokens")
    cost_usd = (prompt * price.prompt + completion * price.completion) / 1_000_000
    return Usage(prompt, completion, cost_usd, requests)
