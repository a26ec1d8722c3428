"""Errors in the shape the OpenAI API gives them."""

from __future__ import annotations

from starlette.responses import JSONResponse


class ChatError(Exception):
    """A refusal the client sees as an HTTP status and an OpenAI error body."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def response(self) -> JSONResponse:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        body = {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        return JSONResponse(body, status_code=self.status)


def bad(message: str, param: str | None = None, code: str | None = None) -> ChatError:
    """A 400 that names the field at fault."""
    return ChatError(400, message, param=param, code=code)


def missing(param: str) -> ChatError:
    return bad(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def wrong_type(param: str, expected: str, got: object) -> ChatError:
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    given = "null" if got is None else names.get(type(got), "an object")
    return bad(f"Invalid type for '{param}': expected {expected}, but got {given} instead.", param, "invalid_type")
