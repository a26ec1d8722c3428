"""Serves a snapshot's site on loopback: panoramas at full size, and marks go straight into the lake.

Only the holder of the token, which is printed once, is answered. The first request carries it in the address and gets a
cookie; another page of the same browser cannot use it (SameSite=Strict), nor send marks (the origin is compared).
"""

import asyncio
import hmac
import logging
import secrets
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from schemas.errors import GeofixError, InputError, LakeError
from tasks.lake import Lake
from tasks.review.marks import read_marks, store_marks
from tasks.review.site import renew_site
from tasks.review.site.build import folder_key
from tasks.runtime.snapshots import find_snapshot

HOST = "127.0.0.1"
MOST_BYTES = 20_000_000  # of posted marks
_COOKIE = "geofix_review"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json"}

logger = logging.getLogger("geofix.review")


def make_app(lake: Lake, snapshot_id: str, token: str, reviewer: str) -> Starlette:
    """The application that serves one site."""
    folder = lake.blobs.pull(folder_key(snapshot_id)).resolve()

    def refused(request: Request) -> Response | None:
        given = request.cookies.get(_COOKIE, "")
        if hmac.compare_digest(given.encode(), token.encode()):
            return None
        return PlainTextResponse("open the address that `geofix review --serve` printed", 403)

    async def start(request: Request) -> Response:
        if "token" not in request.query_params:
            return refused(request) or FileResponse(folder / "index.html")
        if not hmac.compare_digest(request.query_params["token"].encode(), token.encode()):
            return PlainTextResponse("this token is not the one that was printed", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
        return answer

    async def file(request: Request) -> Response:
        denied = refused(request)
        if denied is not None:
            return denied
        path = (folder / request.path_params["path"]).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
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
    renewals = 0

    async def renew() -> None:
        """Renew the site after marks; those that come meanwhile are in the next renewal, which waits for this one."""
        nonlocal renewals
        renewals += 1
        mine = renewals
        async with renewing:
            if mine == renewals:  # else a later one does it
                await run_in_threadpool(lambda: renew_site(lake, find_snapshot(lake, snapshot_id)))

    async def marks(request: Request) -> Response:
        denied = refused(request)
        if denied is not None:
            return denied
        origin = request.headers.get("origin", "")
        if origin != f"http://{request.headers.get('host', '')}":
            return PlainTextResponse("marks are taken from this site only", 403)
        body = b""
        async for part in request.stream():  # a body in chunks does not say its length
            body += part
            if len(body) > MOST_BYTES:
                return PlainTextResponse("too many marks at once", 413, {"Connection": "close"})
        try:
            given = read_marks(body)
            if given.snapshot_id != snapshot_id:
                raise InputError(f"snapshot_id: this site is of snapshot {snapshot_id}")
            async with storing:  # one commit after the other: no two try for the same version of the table
                done = await run_in_threadpool(store_marks, lake, given, reviewer)
        except GeofixError as error:
            return PlainTextResponse(str(error), 400)
        logger.info("%s marks and %s notes taken", done.taken, done.notes_taken)
        said = done.precision.sentence if done.precision else f"{done.taken} marks taken"
        answer = {"says": said, "outcomes": done.outcomes, "note_outcomes": done.note_outcomes}
        return JSONResponse(answer, background=BackgroundTask(renew))

    return Starlette(
        routes=[
            Route("/", start),
            Route("/marks", marks, methods=["POST"]),
            Route("/images/{folder}/{name}", image),
            Route("/{path:path}", file),
        ]
    )


def serve(lake: Lake, snapshot_id: str, reviewer: str, port: int, say: Any) -> None:
    """Serve until interrupted; `say` is called with the address."""
    import uvicorn

    token = secrets.token_urlsafe(24)
    app = make_app(lake, snapshot_id, token, reviewer)
    say(f"http://{HOST}:{port}/?token={token}")
    uvicorn.run(app, host=HOST, port=port, log_level="warning", access_log=False)
