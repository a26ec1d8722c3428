"""Every model, over the OpenAI chat completions protocol.

Budgets, retries, breakers, limits of size and time, and the key stay with `Http`. Requests are those of the official
client, and replies are read as it reads them, which tests compare; sent by it, a request takes 4.5 ms of CPU more. A
role decides which server and model is asked (`models.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from schemas.errors import StageRefused
from schemas.messages import ChatReply, Message, Usage
from tasks.services.answer import said_at
from tasks.services.calls import CallLog, identify
from tasks.services.chat_reply import BadReply, part, read_reply, read_usage
from tasks.services.errors import ServiceError, safe_text
from tasks.services.http import Answer, Connection, Http
from tasks.services.models import Models, Target
from tasks.services.tokens import LONGEST_ANSWER, answer_tokens, question_tokens


class Server:
    """One server of models."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        headers = {"Authorization": f"Bearer {connection.key.get_secret_value()}"} if connection.key else {}
        self.http = Http(connection, headers=headers, **http_options)
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
        completion, answer = await self.http.request_json(
            "POST",
            "/chat/completions",
            json_body=b'{"messages":' + messages_json + b"," + others[1:],
            weight=most * self._share,
            call_id=call_id,
            classify=self._classify,
        )
        usage = read_usage(completion, target.price, answer.attempts)
        if most and usage.tokens:
            self._share = 0.9 * self._share + 0.1 * usage.tokens / most
        try:
            return read_reply(completion, model, usage, bool(fields.get("tools")), call_id)
        except BadReply as error:
            bad = self._bad(str(error))
            bad.usage, bad.attempts = usage, usage.requests
            raise bad from None

    async def models(self) -> list[str]:
        """Names of the models served."""
        value, _ = await self.http.request_json("GET", "/models", classify=self._classify)
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

    def _classify(self, answer: Answer) -> ServiceError | None:
        """OpenAI says 429 for two things, of which only one passes by waiting."""
        try:
            error = part(answer.json(), "error")
        except ValueError:
            return None
        if answer.status == 429 and part(error, "code") == "insufficient_quota":
            said = safe_text(str(part(error, "message") or ""), self.http.secrets)
            return ServiceError(self.http.service, "quota", said_at(said, answer.url), status=429)
        return None

    def _bad(self, what: str, path: str = "/chat/completions") -> ServiceError:
        message = f"{safe_text(what, self.http.secrets)}: {self.http.endpoint.base_url}{path}"
        return ServiceError(self.http.service, "bad_response", message, status=200)


def no_price(role: str, model: str | None) -> str:
    """Why a role cannot be asked within a money budget."""
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
        models = connection.models or Models()
        own = {self._default: replace(connection, models=None)}
        self._models = replace(models, endpoints={**models.endpoints, **own})
        self._http_options = http_options
        self._servers: dict[str, Server] = {}
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

        With `n` above 1 the further choices are the reply's `alternatives`. Where calls are written down, a request
        that was answered before is answered from there; `trial` is not sent, and tells apart requests that are meant
        to be answered several times. A sampled one without seed and trial is always sent.
        """
        target = self._targets.get(role) or self._models.target(role, self._default)
        self._targets[role] = target
        asked: dict[str, Any] = {
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
        fields, body = target.parameters(asked)
        server, log = self._server(target.endpoint), self._models.calls
        model = target.model or await server.only_model()
        messages_json = orjson.dumps(list(messages))  # the pictures are in it: written, and hashed, once
        if log is None:
            return await server.complete(target, model, messages, messages_json, {**fields, **body})
        base_url = server.http.endpoint.base_url
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

    async def models(self, endpoint: str | None = None) -> list[str]:
        """Names of the models that an endpoint serves."""
        return await self._server(endpoint or self._default).models()

    async def close(self) -> None:
        for server in self._servers.values():
            await server.http.close()

    def _server(self, endpoint: str) -> Server:
        if endpoint not in self._servers:
            self._servers[endpoint] = Server(self._models.endpoints[endpoint], **self._http_options)
        return self._servers[endpoint]
