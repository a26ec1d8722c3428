"""Error answers of the Mapillary Graph API, with the statuses and bodies real clients have recorded."""

from __future__ import annotations

import itertools
import json
from typing import Any

from starlette.responses import Response

from infra.offline.seeded_random import key_of

_traces = itertools.count()
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


class GraphError(Exception):
    """An error answer on its way out."""

    def __init__(
        self, status: int, message: str, kind: str | None = None, code: int | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.more = status, message, kind, code, more

    def response(self) -> Response:
        """The HTTP answer."""
        number = key_of("trace", next(_traces))
        trace = "A" + "".join(_ALPHABET[(number >> (6 * i)) & 63] for i in range(20))
        error: dict[str, Any] = {"message": self.message}
        if self.kind is not None:
            error["type"] = self.kind
        if self.code is not None:
            error["code"] = self.code
        error |= self.more
        error["fbtrace_id"] = trace
        return Response(json.dumps({"error": error}), self.status, media_type="application/json")


def no_token() -> GraphError:
    """No token was given: 500, not 401."""
    return GraphError(500, "Invalid OAuth 2.0 Access Token", "MLYApiException", 190)


def malformed_token() -> GraphError:
    """The token has not the shape of one."""
    return GraphError(401, "Failed to decode", "OAuthException", 190)


def unknown_token(in_header: bool) -> GraphError:
    """A token of the right shape that no application owns; the status depends on where it was given."""
    return GraphError(401 if in_header else 400, "Error validating application", "OAuthException", 190)


def unknown_object(image_id: str) -> GraphError:
    """No image has this id: 400, not 404."""
    text = (
        f"Unsupported get request. Object with ID '{image_id}' does not exist, cannot be loaded due to missing "
        "permissions, or does not support this operation"
    )
    return GraphError(400, text, "MLYApiException", 100, error_subcode=33)


def rate_limited() -> GraphError:
    """Too many requests in the last minute: 403, not 429."""
    return GraphError(403, "Application request limit reached", "MLYApiException", 4, is_transient=True)


def box_too_big(area_deg2: float) -> GraphError:
    """The box covers more than the allowed area."""
    text = f"Bounding box area is too large. Maximum allowed area is 0.010 square degrees, but got {area_deg2:.3f}"
    return GraphError(500, text)


def box_too_dense() -> GraphError:
    """Too many images lie in the box, whatever limit and fields were asked."""
    return GraphError(500, "Please reduce the amount of data you're asking for, then retry your request", code=1)


def bad_parameter(text: str) -> GraphError:
    """A parameter that cannot be read."""
    return GraphError(400, f"(#100) {text}", "MLYApiException", 100)
