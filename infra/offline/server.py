"""The offline world as one server: `python -m infra.offline --port 8760 --seed 7 --size 40000`."""

import argparse
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from infra.lifeline import exit_when_orphaned, exit_when_stdin_closes, serve_at
from infra.offline.computing import share_cores
from infra.offline.fault_layer import FaultyWorld
from infra.offline.faults import Faults, parse
from infra.offline.gazetteer import NameIndex
from infra.offline.services.geocoding import Google, Nominatim, OpenCage
from infra.offline.services.image_host import DEFAULT_LIFETIME_S, ImageHost
from infra.offline.services.image_search import Vision
from infra.offline.services.mapillary import TOKEN, Limits, Mapillary, MapillaryTiles
from infra.offline.services.maps import Maps
from infra.offline.services.panoramax import Panoramax
from infra.offline.services.places import Places
from infra.offline.services.web_search import Tavily, You
from infra.offline.sign_index import SignIndex
from infra.offline.world import DEFAULT_SEED, DEFAULT_SIZE, Modes, World
from schemas.extras import MissingExtra, require_extras
from schemas.settings.endpoint import is_loopback_host

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8760
FAULTS_VARIABLE = "GEOFIX_OFFLINE_FAULTS"

Application = Callable[[Any, Any, Any], Awaitable[None]]


def create_app(
    world: World,
    faults: Faults | None = None,
    *,
    limits: Limits | None = None,
    url_lifetime_s: float = DEFAULT_LIFETIME_S,
    tokens: frozenset[str] = frozenset((TOKEN,)),
    warm: bool = True,
    passing: bool = False,
    allow_remote: bool = False,
) -> Application:
    """The ASGI application that serves a world; chat models are part of it and never see the world.

    `warm` builds the name and sign indices in the background at the first request to a model or an index;
    else the first search waits for them. `passing` is for /health: this one ends with the command it serves.
    """
    faults = faults if faults is not None else Faults()
    names, signs = NameIndex(world.gazetteer), SignIndex(world)
    host = ImageHost(world, url_lifetime_s)
    lookup, web = Nominatim(world, names, signs), Tavily(world, names, signs)
    graph = Mapillary(world, host, limits or Limits(), tokens)
    maps = Maps(world, names, signs)
    routes: list[BaseRoute] = [
        Route("/health", lambda request: JSONResponse(_health(world, faults, passing))),
        *graph.routes(),
        *MapillaryTiles(world, graph).routes(),
        *host.routes(),
        *Panoramax(world, host).routes(),
        *lookup.routes(),
        *Google(lookup).routes(),
        *OpenCage(lookup).routes(),
        *web.routes(),
        *You(web).routes(),
        *Vision(web).routes(),
        *maps.routes(),
        *Places(maps).routes(),
        Mount("/stac", _LoadedLater("infra.offline.services.stac", "stac_application", world)),
        Mount("/sas", _LoadedLater("infra.offline.services.blobs", "sas_application", world)),
        Mount("/blob", _LoadedLater("infra.offline.services.blobs", "blob_application", world)),
        Mount("/openai/v1", _LoadedLater("infra.offline.chat", "chat_application")),
        *_control_routes(faults),
    ]

    answers: Application = Starlette(routes=routes)
    if warm:
        answers = _Warming(answers, [names.prepare, signs.prepare])
    served: Application = FaultyWorld(answers, faults)
    return served if allow_remote else _OwnHosts(served)


class _LoadedLater:
    """An application made at its first request: painters and models bring libraries that take a second to load."""

    def __init__(self, module: str, maker: str, *arguments: object) -> None:
        self._module, self._maker, self._given = module, maker, arguments
        self._made: Application | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._made is None:
            made = await anyio.to_thread.run_sync(self._make)
            self._made = self._made or made
        await self._made(scope, receive, send)

    def _make(self) -> Application:
        application: Application = getattr(importlib.import_module(self._module), self._maker)(*self._given)
        return application


class _OwnHosts:
    """Refuses requests whose Host does not name this machine.

    A page in a browser can make its own name point to loopback; such a request bears that name.
    """

    def __init__(self, answers: Application) -> None:
        self._answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not _is_own_host(_host(scope)):
            refusal = JSONResponse({"error": "this Host is not served here"}, 421)
            await refusal(scope, receive, send)
            return
        await self._answers(scope, receive, send)


def _host(scope: Any) -> str:
    """The name in the Host header, without its port."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_own_host(host: str) -> bool:
    return not host or is_loopback_host(host) or host.endswith(".localhost")


class _Warming:
    """Begins to build what searches need with the first request that may lead to one.

    It takes ten seconds of CPU in a large world, and a run that only collects pictures never needs it.
    """

    PICTURES = ("/health", "/control/", "/mapillary", "/panoramax/", "/stac/", "/sas/", "/blob/")

    def __init__(self, answers: Application, prepare: list[Callable[[], None]]) -> None:
        self._answers, self._prepare = answers, prepare

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._prepare and scope["type"] == "http" and not scope["path"].startswith(self.PICTURES):
            begin, self._prepare = self._prepare, []
            for prepare in begin:
                threading.Thread(target=prepare, name="index", daemon=True).start()
        await self._answers(scope, receive, send)


def _health(world: World, faults: Faults, passing: bool) -> dict[str, Any]:
    """Which Earth this is and how it behaves, so that a client can tell it from another."""
    earth = {"seed": world.seed, "size": world.size, "pano_width": world.pano_width}
    return {
        "service": "geofix-offline",
        **earth,
        "modes": world.modes.names(),
        "faults": len(faults.rules),
        "passing": passing,
    }


def _control_routes(faults: Faults) -> list[BaseRoute]:
    async def change_faults(request: Request) -> Response:
        if request.method == "POST":
            try:
                faults.replace(*parse(json.loads(await request.body())))
            except ValueError as error:
                return JSONResponse({"error": str(error)}, 400)
        elif request.method == "DELETE":
            faults.replace([])
        return JSONResponse(faults.to_json())

    async def log(request: Request) -> Response:
        if request.method == "DELETE":
            faults.clear_log()
        return JSONResponse(faults.log())

    async def journal(request: Request) -> Response:
        if request.method == "POST":
            faults.journal = []
        entries = faults.journal
        if request.method == "DELETE":
            faults.journal = None
        if entries is None:
            return JSONResponse({"error": "no journal is kept; POST begins one"}, 404)
        return JSONResponse(entries)

    def checked(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if not is_loopback_host(request.client.host if request.client else ""):
                return JSONResponse({"error": "control is for this machine only"}, 403)
            if request.method == "POST" and not _is_json(request):
                return JSONResponse({"error": "content-type: application/json is needed"}, 415)
            return await answer(request)

        return endpoint

    return [
        Route("/control/faults", checked(change_faults), methods=["GET", "POST", "DELETE"]),
        Route("/control/log", checked(log), methods=["GET", "DELETE"]),
        Route("/control/journal", checked(journal), methods=["GET", "POST", "DELETE"]),
    ]


def _is_json(request: Request) -> bool:
    """Whether a body is declared as JSON: a form of some web page cannot do that."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def make_server(app: Application, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> uvicorn.Server:
    """A server ready to run: `server.run()`, in a thread if need be; `server.should_exit = True` ends it."""
    # The Date header is the fault layer's: a skewed clock shows there.
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, date_header=False)
    return uvicorn.Server(config)


@contextlib.contextmanager
def serving(app: Application) -> Iterator[str]:
    """The application on a free loopback port, in a thread of this process; gives its address, ends with the block."""
    server = make_server(app, port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the server did not start")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def main(argv: list[str] | None = None) -> int:
    """Serves until interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(prog="geofix offline", description="Serve the offline world on loopback.")
    parser.add_argument("--host", default=DEFAULT_HOST)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--listening-fd", type=int, help="serve on this open socket instead")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="places that have imagery")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    parser.add_argument("--pano-width", type=int, default=4096)
    parser.add_argument("--mixed-sizes", action="store_true", help="panoramas of 2048 to 8192 px, some of odd shape")
    parser.add_argument("--dense", action="store_true", help="half of the imagery in ten cities, thousands on a tile")
    parser.add_argument("--graded", action="store_true", help="every grade of blur and darkness, not only the worst")
    parser.add_argument(
        "--processes", type=int, default=1, help="that serve side by side; faults and limits count in each of them"
    )
    parser.add_argument(
        "--url-lifetime", type=float, default=DEFAULT_LIFETIME_S, metavar="SECONDS", help="of signed image addresses"
    )
    parser.add_argument(
        "--faults", default=os.environ.get(FAULTS_VARIABLE, ""), metavar="JSON", help=f"also from {FAULTS_VARIABLE}"
    )
    parser.add_argument(
        "--allow-remote", action="store_true", help="serve other machines too: there is no real security here"
    )
    options = parser.parse_args(argv)
    try:
        require_extras("the offline world", "offline")
    except MissingExtra as error:
        print(f"geofix: {error}", file=sys.stderr)
        return 1
    try:
        world, faults = _read_options(options)
    except ValueError as error:
        print(f"offline world: {error}", file=sys.stderr)
        return 2
    app = create_app(
        world,
        faults,
        url_lifetime_s=options.url_lifetime,
        passing=options.lifeline,
        allow_remote=options.allow_remote,
    )
    try:
        listening = _listen(options.host, options.port) if options.listening_fd is None else None
    except OSError as error:
        where = f"{options.host}:{options.port}"
        print(f"offline world: {where}: {error.strerror or error}; choose another --port", file=sys.stderr)
        return 1
    port = listening.getsockname()[1] if listening else options.port
    print(f"offline world: seed {world.seed}, {world.size:,} places, http://{options.host}:{port}", flush=True)
    others = fork_others(options.processes - 1)
    share_cores(options.processes)
    if options.lifeline:
        exit_when_stdin_closes()
    server = make_server(app, options.host, port)
    try:
        serve_at(server, options.listening_fd if listening is None else listening.detach())
    finally:
        for other in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGTERM)
    return 0 if server.started else 1


def _read_options(options: argparse.Namespace) -> tuple[World, Faults]:
    """The world and its faults; ValueError says which option is wrong."""
    if not options.allow_remote and not is_loopback_host(options.host):
        raise ValueError(f"{options.host} is not loopback; it serves this machine only (--allow-remote to insist)")
    if not 0 <= options.port <= 65535:
        raise ValueError(f"--port {options.port}: a port is between 0 (any free one) and 65535")
    if options.processes < 1:
        raise ValueError(f"--processes {options.processes}: at least 1")
    faults = Faults.from_json(options.faults) if options.faults else Faults()
    modes = Modes(options.mixed_sizes, options.dense, options.graded)
    return World(options.seed, options.size, options.pano_width, modes), faults


def fork_others(count: int) -> list[int]:
    """The ids of further processes that go on as this one does; in each of them an empty list.

    They share the world, the keys that sign addresses and the listening socket. Each ends with the first one.
    """
    pids: list[int] = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            exit_when_orphaned()
            return []
        pids.append(child)
    return pids


def _listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections, so that the address is printed only once it can be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError:
        listening.close()
        raise
    return listening
