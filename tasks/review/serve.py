"""Serves a snapshot's site on loopback: panoramas at full size, and marks go straight into the lake.

Only the holder of the token, which is printed once, is answered. The first request carries it in the address and gets a
cookie; another page of the same browser cannot use it (SameSite=Strict), nor send marks (the origin is compared), nor
ask by a name of its own that leads to this machine (the host is compared).

All reports of the lake are shown, each below the name of its snapshot or stage; one snapshot's at `/` as well. With a
base URL the server is behind a proxy and shows them there: `flows.reports_url` with the same address makes Prefect's
artifacts lead to it. Links from other sites bring the cookie along then (SameSite=Lax), and who has none is sent
the token.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import GeofixError, InputError, LakeError, NotFound
from schemas.settings.endpoint import is_loopback_host
from tasks.lake import Lake
from tasks.review.approval import newest_snapshot
from tasks.review.marks import read_marks, store_marks
from tasks.review.play import Game, read_guess
from tasks.review.site import renew_site
from tasks.review.site.build import folder_key
from tasks.runtime.request_deadline import REQUEST_S, DeadlineProtocol
from tasks.runtime.snapshots import find_snapshot

HOST = "127.0.0.1"
MOST_BYTES = 20_000_000  # of posted marks
TOKEN = "GEOFIX_REVIEW_TOKEN"  # environment variable with a token that stays the same after a restart
FEWEST_LETTERS = 16  # of such a token
_COOKIE = "geofix_review"
_UNKEPT = {"Cache-Control": "no-store"}
_NAME = re.compile(r"[\w-]+")  # of a report's folder: a snapshot's id or a stage
_SIGN_IN = (
    '<!doctype html><meta charset="utf-8"><title>geofix review</title>'
    '<form method="post" action="{action}"><label>Token that <code>geofix review --serve</code> printed '
    '<input name="token" type="password" autofocus required></label> <button>Open</button></form>'
)
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}

logger = logging.getLogger("geofix.review")


def make_app(
    lake: Lake, snapshot_id: str, token: str, reviewer: str, base_url: str | None = None, host: str = HOST
) -> Starlette:
    """The application that serves all reports, this snapshot's first."""
    prefix = urlsplit(base_url or "").path.rstrip("/")
    own_origin = "{0.scheme}://{0.netloc}".format(urlsplit(base_url)) if base_url else None

    def may_see(secret: str) -> bool:
        return hmac.compare_digest(secret.encode(), token.encode())

    def refused(request: Request) -> Response | None:
        if may_see(request.cookies.get(_COOKIE, "")):
            return None
        if base_url and request.method == "GET" and request.url.path.rpartition(".")[2] in ("html", request.url.path):
            to = quote(request.url.path.removeprefix(prefix))
            return HTMLResponse(_SIGN_IN.format(action=f"{prefix}/sign-in?to={to}"), 403)
        return PlainTextResponse("open the address that `geofix review --serve` printed", 403)

    def signed_in(to: str) -> Response:
        answer = RedirectResponse(to, 303)
        lasting: dict[str, Any] = {"samesite": "lax", "secure": base_url.startswith("https://")} if base_url else {}
        answer.set_cookie(_COOKIE, token, httponly=True, path=f"{prefix}/", **({"samesite": "strict"} | lasting))
        return answer

    async def sign_in(request: Request) -> Response:
        body = (await _read_body(request, 1_000)) or b""
        if not may_see(parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]):
            return PlainTextResponse("this token is not the one that was printed", 403)
        to = request.query_params.get("to", "/")
        return signed_in(prefix + (to if re.fullmatch(r"(/[\w.-]+)*/?", to) else "/"))  # never to another site

    def file_of(report: str, name: str) -> Path | None:
        return _file_below(lake.blobs.pull(folder_key(report)).resolve(), name) if _NAME.fullmatch(report) else None

    async def start(request: Request) -> Response:
        if "token" in request.query_params:
            if not may_see(request.query_params["token"]):
                return PlainTextResponse("this token is not the one that was printed", 403)
            return signed_in(f"{prefix}/")
        denied = refused(request)
        if denied is not None:
            return denied
        if base_url:
            row = await run_in_threadpool(newest_snapshot, lake)
            return RedirectResponse(f"{prefix}/{row['snapshot_id'] if row else snapshot_id}/index.html", 303)
        path = await run_in_threadpool(file_of, snapshot_id, "index.html")
        if path is None:
            return PlainTextResponse(f"snapshot {snapshot_id} has no site: run `geofix review`", 404)
        return FileResponse(path)

    async def file(request: Request) -> Response:
        denied = refused(request)
        if denied is not None:
            return denied
        wanted = request.path_params["path"]
        report, _, rest = wanted.partition("/")
        path = None if base_url else await run_in_threadpool(file_of, snapshot_id, wanted)
        path = path or await run_in_threadpool(file_of, report, rest)
        if path is None:
            return PlainTextResponse("not found", 404)
        return FileResponse(path, media_type=_TYPES.get(path.suffix), headers={"Cache-Control": "no-cache"})

    async def image(request: Request) -> Response:
        denied = refused(request)
        if denied is not None:
            return denied
        name = Path(request.path_params["name"])
        try:
            data = await run_in_threadpool(lake.images.read, name.stem, name.suffix.removeprefix("."))
        except LakeError:
            return PlainTextResponse("not found", 404)
        return Response(data, media_type="image/png" if name.suffix == ".png" else "image/jpeg")

    storing, renewing = asyncio.Lock(), asyncio.Lock()
    renewals: Counter[str] = Counter()

    async def renew(site: str) -> None:
        """Renew the site after marks; those that come meanwhile are in the next renewal, which waits for this one."""
        renewals[site] += 1
        mine = renewals[site]
        async with renewing:
            if mine == renewals[site]:  # else a later one does it
                await run_in_threadpool(lambda: renew_site(lake, find_snapshot(lake, site)))

    def is_own(request: Request) -> bool:
        return request.headers.get("origin", "") == (own_origin or f"http://{request.headers.get('host', '')}")

    async def marks(request: Request) -> Response:
        denied = refused(request)
        if denied is not None:
            return denied
        if not is_own(request):
            return PlainTextResponse("marks are taken from this site only", 403)
        body = await _read_body(request, MOST_BYTES)
        if body is None:
            return PlainTextResponse("too many marks at once, or too slow", 413, {"Connection": "close"})
        site = request.path_params.get("snapshot", snapshot_id)
        try:
            mark_file = read_marks(body)
            if mark_file.snapshot_id != site:
                raise InputError(f"snapshot_id: this site is of snapshot {site}")
            async with storing:  # one commit after the other: no two try for the same version of the table
                done = await run_in_threadpool(store_marks, lake, mark_file, reviewer)
        except GeofixError as error:
            return PlainTextResponse(str(error), 400)
        logger.info("%s marks and %s notes taken", done.taken, done.notes_taken)
        sentence = done.precision.sentence if done.precision else f"{done.taken} marks taken"
        answer = {"says": sentence, "outcomes": done.outcomes, "note_outcomes": done.note_outcomes}
        return JSONResponse(answer, background=BackgroundTask(renew, site))

    games: dict[tuple[Any, ...], Game] = {}

    def game(site: str) -> Game:
        """The pictures that can be played; read again when agents have answered more, or pictures were withdrawn."""
        tables = ("predictions", "trajectories", "withdrawals")
        now = (site, *(lake.version(table) for table in tables))
        if now not in games:
            games.clear()
            games[now] = Game.of(lake, find_snapshot(lake, site))
        return games[now]

    async def play(request: Request, work: Callable[[Game, str], Response]) -> Response:
        denied = refused(request)
        if denied is not None:
            return denied
        player = request.query_params.get("player", "")[:80]
        site = request.path_params.get("snapshot", snapshot_id)
        try:
            return await run_in_threadpool(lambda: work(game(site), player))
        except GeofixError as error:
            return PlainTextResponse(str(error), 404 if isinstance(error, NotFound) else 400)

    async def next_round(request: Request) -> Response:
        return await play(request, lambda game, player: JSONResponse(game.next_round(player), headers=_UNKEPT))

    async def played_picture(request: Request) -> Response:
        def read(game: Game, player: str) -> Response:
            row = game.picture_of(player, request.path_params["round"])
            data = lake.images.read(row["sha256"], row["extension"])
            return Response(data, media_type="image/png" if row["extension"] == "png" else "image/jpeg")

        return await play(request, read)

    async def guess(request: Request) -> Response:
        if not is_own(request):
            return PlainTextResponse("guesses are taken from this site only", 403)
        body = await _read_body(request, MOST_BYTES // 100) or b""
        async with storing:
            answer = await play(request, lambda game, _: JSONResponse(game.store(read_guess(body)), headers=_UNKEPT))
        if answer.status_code == 200:
            answer.background = BackgroundTask(renew, request.path_params.get("snapshot", snapshot_id))
        return answer

    def routes_of(site: str) -> list[BaseRoute]:
        return [
            Route(f"{site}/marks", marks, methods=["POST"]),
            Route(f"{site}/play/next", next_round),
            Route(f"{site}/play/picture/{{round}}", played_picture),
            Route(f"{site}/play/guess", guess, methods=["POST"]),
            Route(f"{site}/images/{{folder}}/{{name}}", image),
        ]

    routes: list[BaseRoute] = [
        Route("/", start),
        *([Route("/sign-in", sign_in, methods=["POST"])] if base_url else routes_of("")),
        *routes_of("/{snapshot}"),
        Route("/{path:path}", file),
    ]
    # Proxies pass the path on as it is, or without the part that led to this server.
    return Starlette(
        routes=[Mount(prefix, routes=routes), *routes] if prefix else routes,
        middleware=[Middleware(KnownHost, host=host, base_url=base_url)],
    )


class KnownHost:
    """Answers only who asks by loopback's names, by the address it listens on or by that of the base URL.

    A page of another address can let its name lead here; where it listens on all addresses, it has no name.
    """

    def __init__(self, app: ASGIApp, host: str, base_url: str | None) -> None:
        self._app, self._names = app, {host.lower(), urlsplit(base_url or "").hostname}
        self._is_anywhere = host in ("0.0.0.0", "::")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._knows(Headers(scope=scope).get("host", "")):
            refusal = PlainTextResponse("requested by a name that is not this server's", 421)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"http://{host}").hostname or ""
            if name in self._names or is_loopback_host(name):
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._is_anywhere


def _file_below(folder: Path, name: str) -> Path | None:
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder) and path.is_file() else None
    except (OSError, ValueError):  # too long, or with a null byte
        return None


async def _read_body(request: Request, most: int) -> bytes | None:
    """The body; None if it is longer or does not come. One in chunks does not say its length."""
    body = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_S):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    return None
            return body
    return None


def serve(
    lake: Lake, snapshot_id: str, reviewer: str, port: int, say: Any, host: str = HOST, base_url: str | None = None
) -> None:
    """Serve until interrupted; `say` is called with the address."""
    import uvicorn

    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if len(token) < FEWEST_LETTERS or not token.isascii() or not token.isprintable():
        raise InputError(f"{TOKEN}: a token has {FEWEST_LETTERS} letters or more; leave it unset to have one made")
    app = make_app(lake, snapshot_id, token, reviewer, base_url, host)
    shown = token if TOKEN not in os.environ else f"${TOKEN}"
    say(f"{(base_url or f'http://{HOST}:{port}').rstrip('/')}/?token={shown}")
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, http=DeadlineProtocol)
