"""Tools described once, by a typed signature and a Google docstring; every schema and check follows from it."""

import inspect
import math
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

_JSON_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
GIVEN = ("self", "context")  # parameters that the caller fills in, not the model
MAX_ARGUMENT_CHARS = 20_000
_SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:", "Example:", "Examples:", "Note:")


class BadArguments(ValueError):
    """A tool call's arguments are not what the tool takes; the text tells the model what to mend."""


@dataclass(frozen=True)
class ToolSpec:
    """One tool: its name, what it does, what it takes, and the function that does it."""

    name: str
    about: str
    parameters: Mapping[str, inspect.Parameter]
    types: Mapping[str, Any]
    explained: Mapping[str, str]
    function: Callable[..., Any]
    service: str | None = None  # the connection it asks; None: no service, so nothing is kept of it
    needs_picture: bool = False
    thousandths: bool = False  # its boxes are in thousandths of the picture's sides, not in pixels

    def openai(self) -> dict[str, Any]:
        """The entry of an OpenAI request's `tools`, and of verl's tool configuration.

        Key by key what transformers' `get_json_schema` makes of `method()`, and so what TRL shows a model.
        """
        function = {"name": self.name, "description": self.about, "parameters": self.input_schema()}
        return {"type": "function", "function": function}

    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, MCP's `inputSchema`."""
        properties = {
            name: {**json_type(self.types[name]), "description": self.explained[name]} for name in self.parameters
        }
        required = [name for name, p in self.parameters.items() if p.default is inspect.Parameter.empty]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        return {**schema, "required": required} if required else schema

    def method(self, act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A method of this tool's name, signature and docstring that does `act(self, **arguments)`, as TRL wants it."""

        async def tool(self: Any, **arguments: Any) -> Any:
            return await act(self, **arguments)

        lines = [f"    {name}: {self.explained[name]}" for name in self.parameters]
        tool.__name__ = tool.__qualname__ = self.name
        tool.__doc__ = "\n".join([self.about, "", "Args:", *lines])
        tool.__annotations__ = dict(self.types)
        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        tool.__signature__ = inspect.Signature([receiver, *self.parameters.values()])  # type: ignore[attr-defined]
        return tool

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments a model wrote, checked; BadArguments in words it can act on."""
        if len(text) > MAX_ARGUMENT_CHARS:
            raise BadArguments(f"arguments: longer than {MAX_ARGUMENT_CHARS} characters")
        try:
            checked = self._model.model_validate_json(text)
        except ValidationError as error:
            raise BadArguments(_explain(error)) from None
        values = {name: getattr(checked, name) for name in self.parameters}
        for name, value in values.items():
            if not _finite(value):
                raise BadArguments(f"{name}: numbers must be finite")
        return values

    @cached_property
    def _model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {
            name: (self.types[name], ... if p.default is inspect.Parameter.empty else p.default)
            for name, p in self.parameters.items()
        }
        # Strict: the text "3" is not the number 3, and a model that confuses them has to learn it.
        return create_model(self.name, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def tool_spec(
    function: Callable[..., Any], service: str | None = None, needs_picture: bool = False, thousandths: bool = False
) -> ToolSpec:
    """The spec of a function or method; TypeError if its signature or docstring leaves something unsaid."""
    name = function.__name__
    about, explained = _read_docstring(inspect.getdoc(function) or "")
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if n not in GIVEN}
    hints = typing.get_type_hints(function)
    if not about:
        raise TypeError(f"tool {name} has no docstring")
    for parameter in parameters:
        if parameter not in hints:
            raise TypeError(f"tool {name}: parameter {parameter} has no type")
        if not explained.get(parameter):
            raise TypeError(f"tool {name}: parameter {parameter} is not explained under Args")
        json_type(hints[parameter])
    strangers = set(explained) - set(parameters)
    if strangers:
        raise TypeError(f"tool {name}: Args explains {', '.join(sorted(strangers))}, which it does not take")
    types = {n: hints[n] for n in parameters}
    return ToolSpec(name, about, parameters, types, explained, function, service, needs_picture, thousandths)


def json_type(hint: Any) -> dict[str, Any]:
    """The JSON schema of a Python type a tool may take; TypeError for any other."""
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal and all(isinstance(value, str) for value in inner):
        return {"type": "string", "enum": list(inner)}
    if origin is list and len(inner) == 1:
        return {"type": "array", "items": json_type(inner[0])}
    if origin in (typing.Union, types.UnionType):
        rest = [part for part in inner if part is not type(None)]
        if len(rest) == 1:
            return {**json_type(rest[0]), "nullable": True}
    raise TypeError(f"a tool cannot take {hint}")


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The summary (all paragraphs before the first section) and what Args says of each parameter."""
    about: list[str] = []
    explained: dict[str, str] = {}
    section, current = "", ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped in _SECTIONS and not line.startswith(" "):
            section = stripped
        elif not section:
            about.append(stripped)
        elif section == "Args:" and stripped:
            name, colon, rest = stripped.partition(":")
            if colon and len(line) - len(line.lstrip()) == 4:
                current = name.partition("(")[0].strip()
                explained[current] = rest.strip()
            elif current:
                explained[current] += f" {stripped}"
    return " ".join(" ".join(about).split()), explained


def _explain(error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"]) or "arguments"
        problems.append(f"{where}: {problem['msg'][:200]}")
    return "; ".join(problems[:5])


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(_finite(part) for part in value) if isinstance(value, list | tuple) else True
