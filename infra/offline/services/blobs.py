"""The asset host and its signing endpoint: byte ranges of scenes' files under addresses signed per container.

/blob/{account}/{container}/{path}                     GET, HEAD, Range
/sas/api/sas/v1/token/{account}/{container}            {"msft:expiry", "token"}
"""

import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from infra.offline.computing import compute_in_thread
from infra.offline.fault_layer import clock
from infra.offline.scenes.cog import ASSETS, Painter, layout_of
from infra.offline.scenes.orbit import Scene, scene_with_id
from infra.offline.services.image_host import byte_range
from infra.offline.world import World

ACCOUNT, CONTAINER = "sentinel2l2a01", "sentinel2-l2"
LIFETIME_S = 45 * 60.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_PRODUCT = re.compile(r"(S2[AB]_MSIL2A_\d{8}T\d{6})_N\d{4}(_R\d{3}_T\w{5}_\d{8}T\d{6})\.SAFE")
_MESSAGES = {
    "PublicAccessNotPermitted": (409, "Public access is not permitted on this storage account."),
    "AuthenticationFailed": (403, "Server failed to authenticate the request. Make sure the value of Authorization "
                                  "header is formed correctly including the signature."),
    "BlobNotFound": (404, "The specified blob does not exist."),
    "InvalidRange": (416, "The range specified is invalid for the current size of the resource."),
}  # fmt: skip


def blob_path(scene: Scene, asset: str) -> str:
    """Where an asset lies in the container: as in the real archive, not to be guessed from the item's id."""
    tile, at = scene.tile.name, scene.at
    head, tail = scene.id.split("_R", 1)
    product = f"{head}_N{scene.baseline.replace('.', '')}_R{tail}.SAFE"
    granule = f"L2A_T{tile}_A{(scene.number * 715 + scene.orbit) % 100_000:06d}_{at:%Y%m%dT%H%M%S}"
    folder = f"{tile[:2]}/{tile[2]}/{tile[3:]}/{at:%Y/%m/%d}/{product}/GRANULE/{granule}/IMG_DATA/R{ASSETS[asset]}m"
    name = "TCI" if asset == "visual" else asset
    return f"{folder}/T{tile}_{at:%Y%m%dT%H%M%S}_{name}_{ASSETS[asset]}m.tif"


def find_blob(path: str) -> tuple[Scene, str] | None:
    """(scene, asset) at a path, or None when nothing lies there."""
    match = _PRODUCT.search(path)
    scene = scene_with_id(match[1] + match[2]) if match else None
    if scene is None:
        return None
    return next(((scene, asset) for asset in ASSETS if blob_path(scene, asset) == path), None)


class Signer:
    """Makes and checks the tokens that open a container for some time."""

    def __init__(self, seed: int, lifetime_s: float = LIFETIME_S) -> None:
        self.lifetime_s = lifetime_s
        self._secret = hashlib.blake2b(f"blobs {seed}".encode()).digest()

    def token(self, account: str, container: str, now: float, expired: bool = False) -> tuple[str, str]:
        """(expiry, token) in the shape of a shared access signature."""
        end = _stamp(now - 60.0 if expired else now + self.lifetime_s)
        fields = {"st": _stamp(now - 86_400.0), "se": end, "sp": "rl", "sv": "2021-06-08", "sr": "c"}
        return end, urlencode({**fields, "sig": self._signature(account, container, fields)})

    def opens(self, query: str, account: str, container: str, now: float) -> bool:
        """Whether a query string carries a token for a container that is right and still holds."""
        parameters = dict(parse_qsl(query))
        fields = {name: parameters.get(name, "") for name in ("st", "se", "sp", "sv", "sr")}
        if not hmac.compare_digest(self._signature(account, container, fields), parameters.get("sig", "")):
            return False
        return fields["st"] <= _stamp(now) <= fields["se"]  # one format: text sorts as time does

    def _signature(self, account: str, container: str, fields: dict[str, str]) -> str:
        text = "\n".join((account, container, *fields.values()))
        return base64.b64encode(hmac.new(self._secret, text.encode(), hashlib.sha256).digest()).decode()


def _stamp(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime(_TIME)


def _refuse(code: str, length: int | None = None) -> Response:
    status, message = _MESSAGES[code]
    body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    headers = {"x-ms-error-code": code}
    if length is not None:
        headers["content-range"] = f"bytes */{length}"
    return Response(body, status, headers, "application/xml")


class BlobHost:
    """Serves the files of a world's scenes."""

    def __init__(self, world: World) -> None:
        self.signer, self.painter = Signer(world.seed), Painter(world.seed)
        self._etag = f'"0x8D{hashlib.blake2b(f"etag {world.seed}".encode(), digest_size=6).hexdigest().upper()}"'

    async def answer(self, request: Request) -> Response:
        """A file, or a range of it."""
        account, container, path = (request.path_params[name] for name in ("account", "container", "path"))
        if "sig" not in request.query_params:
            return _refuse("PublicAccessNotPermitted")
        expired = "expired_url" in request.scope.get("faults", ())
        if expired or not self.signer.opens(request.url.query, account, container, clock(request.scope)):
            return _refuse("AuthenticationFailed")
        blob = find_blob(path) if (account, container) == (ACCOUNT, CONTAINER) else None
        if blob is None:
            return _refuse("BlobNotFound")
        scene, asset = blob
        length = layout_of(scene.tile, asset).length
        wanted = byte_range(request.headers.get("range", ""), length)
        if wanted == (0, 0):
            return _refuse("InvalidRange", length)
        start, end = wanted or (0, length)
        headers = {
            "accept-ranges": "bytes",
            "content-length": str(end - start),
            "etag": self._etag,
            "last-modified": scene.at.strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "x-ms-blob-type": "BlockBlob",
        }
        if wanted:
            headers["content-range"] = f"bytes {start}-{end - 1}/{length}"
        status = 206 if wanted else 200
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type="image/tiff")
        return StreamingResponse(self._pieces(scene, asset, start, end), status, headers, "image/tiff")

    async def _pieces(self, scene: Scene, asset: str, start: int, end: int) -> AsyncIterator[bytes]:
        pieces = self.painter.read(scene, asset, start, end)
        while True:
            piece = await compute_in_thread(next, pieces, b"")
            if not piece:
                return
            yield piece


def blob_application(world: World) -> Starlette:
    """What is mounted at `/blob`."""
    host = BlobHost(world)
    return Starlette(routes=[Route("/{account}/{container}/{path:path}", host.answer, methods=["GET", "HEAD"])])


def sas_application(world: World) -> Starlette:
    """What is mounted at `/sas`."""
    signer = Signer(world.seed)

    async def token(request: Request) -> Response:
        account, container = request.path_params["account"], request.path_params["container"]
        if (account, container) != (ACCOUNT, CONTAINER):
            return JSONResponse({"detail": f"No such storage container: {account}/{container}"}, 404)
        expired = "expired_url" in request.scope.get("faults", ())
        end, text = signer.token(ACCOUNT, CONTAINER, clock(request.scope), expired)
        return JSONResponse({"msft:expiry": end, "token": text})

    return Starlette(routes=[Route("/api/sas/v1/token/{account}/{container}", token)])
