"""`geofix serve pictures`: search by a picture among a lake's own, in the shape of Google's web detection.

A request names beside the crop the picture that it is of (`labels.picture`, the sha256 of its bytes), so that nothing
of its place is answered. Licence and attribution of the pictures that are found go along with each page.
"""

import base64
import binascii
import hmac
import json
import sys
from dataclasses import asdict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from infra.serve.request import Refused
from infra.serve.server import check_sender, no_such_thing, read_body, refusal
from tasks.agent.look_alikes import LookAlikes, UnknownPicture
from tasks.imaging.decode import BadImage
from tasks.runtime.computing import computing
from tasks.runtime.request_deadline import DeadlineProtocol

MOST, MOST_CROPS = 20, 16
BAD_IMAGE, FORBIDDEN = 3, 7  # Google's codes: of the request, and of who may not ask


class PictureSearch:
    """The index behind HTTP."""

    def __init__(self, index: LookAlikes, key: str | None = None) -> None:
        self._index, self._key = index, key

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/health", self.health), Route("/v1/images:annotate", self.annotate, methods=["POST"])],
            exception_handlers={Refused: refusal, HTTPException: no_such_thing},
        )

    async def health(self, request: Request) -> JSONResponse:
        check_sender(request, "")
        return JSONResponse({"service": "geofix-pictures", "pictures": self._index.count})

    async def annotate(self, request: Request) -> JSONResponse:
        check_sender(request, "")
        key = request.headers.get("x-goog-api-key", "").encode()
        if self._key is not None and not hmac.compare_digest(key, self._key.encode()):
            raise Refused(401, "the key is another one", "invalid_api_key")
        try:
            body = json.loads(await read_body(request))
            of, crops = str(body["labels"]["picture"]), body["requests"]
            wanted = [(crop["image"]["content"], crop["features"][0].get("maxResults", 10)) for crop in crops]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise Refused(400, "give image, features and labels.picture", "invalid_request") from None
        if len(wanted) > MOST_CROPS:
            raise Refused(400, f"at most {MOST_CROPS} crops a request", "invalid_request")
        return JSONResponse({"responses": [await computing.run(self._answer, crop, of, most) for crop, most in wanted]})

    def _answer(self, content: Any, of: str, most: Any) -> dict[str, Any]:
        try:
            crop = base64.b64decode(content, validate=True)
            found = self._index.find(crop, of, most if isinstance(most, int) and 0 < most <= MOST else 10)
        except UnknownPicture as error:
            print(f"geofix: asked about {of[:12]}: {error}", file=sys.stderr, flush=True)
            return {"error": {"code": FORBIDDEN, "message": str(error)}}
        except (BadImage, TypeError, ValueError, binascii.Error):
            return {"error": {"code": BAD_IMAGE, "message": "Bad image data."}}
        pages = [{"pageTitle": page.title, **{k: v for k, v in asdict(page).items() if k != "title"}} for page in found]
        return {"webDetection": {"pagesWithMatchingImages": pages}}


def serve_pictures(index: LookAlikes, port: int, key: str | None = None) -> None:
    """Serve on loopback until stopped."""
    app = PictureSearch(index, key).app()
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, http=DeadlineProtocol, log_level="warning", access_log=False
    )
    uvicorn.Server(config).run()
