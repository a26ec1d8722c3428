"""Loopback servers in the place of each vendor: the offline world's answers behind a vendor's own door.

Each vendor has a port and a key of its own. A request without its key, or with that of another vendor anywhere in it,
is refused and noted. Models go by the names vendors give them; those that reason refuse what OpenAI's refuse.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.responses import JSONResponse

from infra.offline.server import Application, create_app, serving
from infra.offline.services.maps import KEY as MAPS_KEY
from infra.offline.world import World
from schemas.settings.services import OFFLINE_CHAT_KEY, OFFLINE_PLACES_KEY, OFFLINE_SEARCH_KEY
from tasks.curate.verdict import SYSTEM as JUDGE
from tasks.recipes.spotagent import OBSERVER
from tasks.reward.prose import fold_text
from tasks.reward.services import VERIFIER

# Made up, in the shapes that vendors demand.
KEYS = {
    "MAPILLARY_TOKEN": "MLY|2600000000000026|5ea15ea15ea15ea15ea15ea15ea15ea1",
    "OPENAI_API_KEY": "sk-proj-rehearsal-Kq7vXw2mZr9TbN4y",
    "ANTHROPIC_API_KEY": "sk-ant-rehearsal-Jf3uQe8sLd6HcV1o",
    "GEMINI_API_KEY": "AIzaRehearsalGemini5pRtYwE0aSgKx",
    "GOOGLE_MAPS_KEY": "AIzaRehearsalMaps8bNmQzXcVfUjHt2",
    "AMAP_KEY": "rehearsal4amap9c1d7e3f5a8b2c6d0e4f",
    "TAVILY_API_KEY": "tvly-rehearsal-Wd5kPs0yGh7RnC2l",
}
OWN_SERVERS = ("policy", "large", "llava", "embeddings")  # want no key
REASONING = ("gpt-5", "o3")
ANSWERERS = {"llava": "answerer-small", "gpt-4o-mini": "answerer-base", "Qwen/Qwen2.5": "answerer-base"}


@dataclass
class Vendor:
    """One vendor's door to the world."""

    name: str
    paths: tuple[str, ...]  # that it answers
    key_name: str | None = None
    opens: str = ""  # the offline world's key behind it
    open_paths: tuple[str, ...] = ("/mapillary-cdn",)  # signed addresses, without a key
    models: tuple[str, ...] = ()
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    world: Application | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self.world is not None
        if scope["type"] != "http":
            await self.world(scope, receive, send)
            return
        body = await _body(receive)
        reply = self._refusal(scope, body)
        if reply is None and self.models and scope["path"].startswith(self.paths):
            reply, body = self._model_reply(scope, body)
        if reply is not None:
            await reply(scope, receive, send)
            return
        self.answered[scope["path"].split("/")[1]] += 1
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = scope | {"headers": [*headers, (b"content-length", str(len(body)).encode())]}
        if self.key_name and self.opens:
            scope = _with_key(scope, KEYS[self.key_name], self.opens)
        if self.models and not self.key_name:
            scope["headers"].append((b"authorization", f"Bearer {OFFLINE_CHAT_KEY}".encode()))
        await self.world(scope, _Sent(body, receive).receive, send)

    def _refusal(self, scope: Any, body: bytes) -> JSONResponse | None:
        """What is wrong with the keys of a request, or its address."""
        outside = unquote(scope["query_string"].decode()) + " ".join(v.decode("latin-1") for _, v in scope["headers"])
        everything = outside + unquote(body.decode("utf-8", "replace"))
        strangers = [name for name, key in KEYS.items() if name != self.key_name and key in everything]
        wants_key = self.key_name and not scope["path"].startswith(self.open_paths)
        if strangers:
            return self._refuse(403, f"carries {' and '.join(strangers)}")
        if not scope["path"].startswith(self.paths):
            return self._refuse(404, f"{scope['path']} is not here")
        if wants_key and KEYS[str(self.key_name)] not in outside:
            return self._refuse(401, f"no {self.key_name}")
        return None

    def _refuse(self, status: int, why: str) -> JSONResponse:
        self.refused[why] += 1
        return JSONResponse({"error": {"message": why, "type": "invalid_request_error"}}, status)

    def _model_reply(self, scope: Any, body: bytes) -> tuple[JSONResponse | None, bytes]:
        """A reply of its own, or the request as the offline world's model is asked."""
        if scope["path"].endswith("/models"):
            return JSONResponse(
                {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            ), b""
        if scope["method"] != "POST":
            return None, body
        request = json.loads(body)
        model = request.get("model")
        if model not in self.models:
            return self._refuse(404, f"no model {model}"), b""
        if model in REASONING and (wrong := {"temperature", "seed", "max_tokens"} & request.keys()):
            return self._refuse(400, f"{model}: unsupported parameter {', '.join(sorted(wrong))}"), b""
        self.answered[model] += 1
        system = "".join(m["content"] for m in request.get("messages", ()) if m["role"] == "system")
        if system.startswith(VERIFIER):
            return JSONResponse(_level_verdict(request)), b""
        return None, json.dumps(request | {"model": _offline_model(model, system, request)}).encode()


def _offline_model(model: str, system: str, request: dict[str, Any]) -> str:
    """Which of the offline world's models speaks for a vendor's; some do several things, told apart by their words."""
    if "messages" not in request:
        return "embedder"
    sees = '"image_url"' in json.dumps(request["messages"])
    if system.startswith(JUDGE[:60]):
        return "judge"
    if system == OBSERVER:
        return "observer"
    if model == "gpt-4.1-mini":
        return "consistency"
    if model.startswith("claude") and not sees:
        return "planner"
    if model == "gpt-4.1" or request.get("tools"):
        return "agent"
    if "235B" in model and "trajector" in json.dumps(request["messages"]):
        return "verifier"
    return next((name for start, name in ANSWERERS.items() if model.startswith(start)), "answerer-large")


def _level_verdict(request: dict[str, Any]) -> dict[str, Any]:
    """GeoVista's second opinion on names, by a rule: the true one stands in the answer."""
    question = json.loads(request["messages"][-1]["content"])
    same = fold_text(question["true_name"]) in fold_text(question["answer"])
    message = {"role": "assistant", "content": json.dumps({"same": same})}
    usage = {"prompt_tokens": 200, "completion_tokens": 6, "total_tokens": 206}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "v", "object": "chat.completion", "model": request["model"], "choices": [choice], "usage": usage}


def _with_key(scope: Any, key: str, ours: str) -> Any:
    swap = re.compile(re.escape(key).replace(r"\|", r"(?:\||%7C)"), re.I)
    headers = [(name, swap.sub(ours, value.decode("latin-1")).encode("latin-1")) for name, value in scope["headers"]]
    return scope | {"headers": headers, "query_string": swap.sub(ours, scope["query_string"].decode()).encode()}


async def _body(receive: Any) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


class _Sent:
    """A request that was read, on its connection, which the world's fault layer looks at."""

    def __init__(self, body: bytes, receive: Any) -> None:
        self._body: bytes | None = body
        self._connection, self.transport = receive, receive.__self__.transport

    async def receive(self) -> Any:
        if self._body is None:
            return await self._connection()  # the end of the connection
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def vendors(roles: dict[str, Any]) -> dict[str, Vendor]:
    """Every vendor of the profile, by the name of its service or endpoint; `roles` of the profile name the models."""

    def models_of(endpoint: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r["model"] for r in roles.values() if r.get("endpoint", "chat") == endpoint))

    chat = ("/openai/v1",)
    street = ("/mapillary", "/mapillary-tiles", "/mapillary-cdn")
    listed = [
        Vendor("mapillary", street, "MAPILLARY_TOKEN"),
        Vendor("panoramax", ("/panoramax",)),
        Vendor("stac", ("/stac", "/sas", "/blob")),
        Vendor("geocoder", ("/nominatim",)),
        Vendor("maps", ("/maps",), "AMAP_KEY", MAPS_KEY),
        Vendor("world_maps", ("/places",), "GOOGLE_MAPS_KEY", OFFLINE_PLACES_KEY),
        Vendor("search", ("/tavily",), "TAVILY_API_KEY", OFFLINE_SEARCH_KEY),
        Vendor("chat", chat, "OPENAI_API_KEY", models=models_of("chat")),
        Vendor("anthropic", chat, "ANTHROPIC_API_KEY", models=models_of("anthropic")),
        Vendor("google", chat, "GEMINI_API_KEY", OFFLINE_CHAT_KEY, models=models_of("google")),
        *(Vendor(name, chat, models=models_of(name)) for name in OWN_SERVERS),
    ]
    return {one.name: one for one in listed}


@contextlib.contextmanager
def served(doors: dict[str, Vendor], size: int) -> Iterator[dict[str, str]]:
    """The vendors' addresses, by name, until the block ends."""
    world = create_app(World(size=size), tokens=frozenset((KEYS["MAPILLARY_TOKEN"],)))
    with contextlib.ExitStack() as open_doors:
        addresses = {}
        for name, door in doors.items():
            door.world = world
            addresses[name] = open_doors.enter_context(serving(door))
        yield addresses


def settings_of_addresses(at: dict[str, str]) -> list[str]:
    """The addresses as settings: what a rehearsal changes of the profile's services, and all of it."""
    return [
        f"services.mapillary.base_url={at['mapillary']}/mapillary",
        f"services.mapillary.tiles_url={at['mapillary']}/mapillary-tiles/maps/vtp/mly1_public/2",
        f"services.panoramax.base_url={at['panoramax']}/panoramax/api",
        f"services.stac.base_url={at['stac']}/stac/api/stac/v1",
        f"services.stac.sas_url={at['stac']}/sas/api/sas/v1",
        f"services.geocoder.base_url={at['geocoder']}/nominatim",
        f"services.maps.base_url={at['maps']}/maps",
        f"services.world_maps.base_url={at['world_maps']}/places",
        f"services.world_maps.pictures_url={at['world_maps']}/places",
        f"services.search.base_url={at['search']}/tavily",
        f"services.chat.base_url={at['chat']}/openai/v1",
        *(f"models.endpoints.{name}.base_url={at[name]}/openai/v1" for name in ("anthropic", "google", *OWN_SERVERS)),
    ]
