"""How each service tells of trouble: status, body and headers of its own error answers."""

from __future__ import annotations

import json
from typing import Any

Answer = tuple[int, bytes, str, dict[str, str]]  # status, body, content type, headers

_REASONS = {
    402: "Payment Required", 403: "Forbidden", 429: "Too Many Requests", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Time-out",
}  # fmt: skip


def error_answer(service: str, status: int) -> Answer:
    """What a service answers when it fails with a status; some answer 200 and tell the trouble in the body."""
    maker = _MAKERS.get(service)
    if maker is not None:
        return maker(status)
    reason = _REASONS.get(status, "Internal Server Error")
    return status, f"<html><head><title>{status} {reason}</title></head></html>".encode(), "text/html", {}


def _json(status: int, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return status, json.dumps(body).encode(), "application/json", headers or {}


def _mapillary(status: int) -> Answer:
    if status in (403, 429):
        message, code = "Application request limit reached", 4
    else:
        message, code = "Service temporarily unavailable", 2
    error = {"message": message, "type": "MLYApiException", "code": code, "is_transient": True}
    return _json(status, {"error": {**error, "fbtrace_id": "AoFFl1neW0r1dFau1tAAAAA"}})


def _openai(status: int) -> Answer:
    if status == 429:
        error = {
            "message": "Rate limit reached for requests",
            "type": "requests",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        return _json(status, {"error": error}, {"retry-after": "1"})
    message = "The server had an error while processing your request."
    return _json(status, {"error": {"message": message, "type": "server_error", "param": None, "code": None}})


def _tavily(status: int) -> Answer:
    text = "Your request has been blocked due to excessive requests." if status == 429 else "Internal Server Error"
    return _json(status, {"detail": {"error": text}}, {"retry-after": "1"} if status == 429 else {})


def _google(status: int) -> Answer:
    if status == 429:
        message, word = "You have exceeded your rate-limit for this API.", "OVER_QUERY_LIMIT"
    elif status in (402, 403):
        message, word = "This API project is not authorized to use this API.", "REQUEST_DENIED"
    else:
        return _json(status, {"results": [], "status": "UNKNOWN_ERROR"})
    return _json(200, {"error_message": message, "results": [], "status": word})


def _opencage(status: int) -> Answer:
    messages = {402: "quota exceeded", 403: "suspended", 429: "too many requests", 503: "internal server error"}
    body: dict[str, Any] = {
        "documentation": "https://opencagedata.com/api",
        "results": [],
        "status": {"code": status, "message": messages.get(status, "internal server error")},
        "total_results": 0,
    }
    if status == 402:
        body["rate"] = {"limit": 2500, "remaining": 0, "reset": 4_102_444_800}
    return _json(status, body)


def _you(status: int) -> Answer:
    message = {402: "Payment Required", 403: "Forbidden", 429: "Limit Exceeded"}.get(status, "Internal Server Error")
    return _json(status, {"message": message})


def _maps(status: int) -> Answer:
    words = {
        402: ("USER_DAILY_QUERY_OVER_LIMIT", "10044"),
        403: ("USERKEY_PLAT_NOMATCH", "10009"),
        429: ("CUQPS_HAS_EXCEEDED_THE_LIMIT", "10021"),
    }
    info, code = words.get(status, ("ENGINE_RESPONSE_DATA_ERROR", "30001"))
    return _json(200 if status < 500 else status, {"status": "0", "info": info, "infocode": code})


def _stac(status: int) -> Answer:
    # Plain text, and a Retry-After that may be missing: here it is.
    return status, _REASONS.get(status, "Internal Server Error").encode(), "text/plain", {}


def _blob(status: int) -> Answer:
    code, text = {
        403: ("AuthenticationFailed", "Server failed to authenticate the request."),
        429: ("ServerBusy", "The server is currently unable to receive requests."),
        503: ("ServerBusy", "The server is currently unable to receive requests."),
    }.get(status, ("InternalError", "The server encountered an internal error."))
    body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
    return status, body.encode(), "application/xml", {"x-ms-error-code": code}


_MAKERS = {
    "mapillary": _mapillary,
    "mapillary-tiles": _mapillary,
    "openai": _openai,
    "tavily": _tavily,
    "google": _google,
    "opencage": _opencage,
    "you": _you,
    "maps": _maps,
    "stac": _stac,
    "sas": _stac,
    "blob": _blob,
}
