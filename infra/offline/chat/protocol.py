"""A chat completion request, read and checked as the OpenAI API checks it, with the errors it gives."""

import base64
import binascii
import hashlib
import io
import json
from dataclasses import dataclass, field
from typing import Any

from PIL import Image, UnidentifiedImageError
from starlette.responses import JSONResponse

MAX_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 40_000_000
FORMATS = {"PNG", "JPEG", "WEBP", "GIF"}
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_CHOICES = 16
MAX_IMAGES = 32
CONTEXT_TOKENS = 131_072  # of every served model
# What vendors and vLLM take; anything else is refused by name, as a misspelt parameter would go unnoticed.
PARAMETERS = frozenset((
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "temperature", "top_p",
    "top_k", "min_p", "n", "seed", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options",
    "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "user", "metadata", "store",
    "service_tier", "reasoning_effort", "modalities", "chat_template_kwargs", "prompt_cache_key", "safety_identifier",
))  # fmt: skip


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


def is_panorama(width: int, height: int) -> bool:
    """Whether a picture has the shape of an equirectangular panorama; a small wide one is more likely a crop."""
    return width >= 1400 and abs(width / height - 2) < 0.03


@dataclass(frozen=True)
class Picture:
    data: bytes
    sha256: str
    width: int
    height: int

    def rgb(self) -> Image.Image:
        """The decoded pixels."""
        with Image.open(io.BytesIO(self.data)) as image:
            return image.convert("RGB")


def open_data_uri(url: str, where: str) -> Picture:
    """The picture in a base64 data URI; a remote URL is refused, since this server fetches nothing."""
    if not url.startswith("data:"):
        raise bad("Failed to download image. Only base64 data URIs are accepted here.", where, "invalid_image_url")
    head, _, payload = url.partition(",")
    if not head.endswith(";base64"):
        raise bad("Invalid image data URI: expected base64 encoding.", where, "invalid_base64")
    try:
        data = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad("Invalid base64 image_url.", where, "invalid_base64") from None
    if len(data) > MAX_BYTES:
        raise bad("Image is too large. The limit is 20 MB.", where, "image_too_large")
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind, (width, height) = image.format, image.size
            if kind not in FORMATS:
                raise UnidentifiedImageError(kind)
            if width * height > MAX_PIXELS:
                raise bad("Image has too many pixels.", where, "image_too_large")
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        text = "You uploaded an unsupported image. Please make sure your image is valid png, jpeg, gif or webp."
        raise bad(text, where, "invalid_image_format") from None
    return Picture(data, hashlib.sha256(data).hexdigest(), width, height)


@dataclass(frozen=True)
class ToolCall:
    """A function call the assistant made earlier; arguments are kept as the text it wrote."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """The arguments as an object; empty where the text was not one."""
        try:
            value = json.loads(self.arguments)
        except json.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Message:
    role: str
    text: str
    pictures: tuple[Picture, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: tuple[Message, ...]
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)  # function name -> parameters schema
    tool_notes: dict[str, str] = field(default_factory=dict)  # function name -> what its description says
    tool_choice: str = "auto"  # none | auto | required | the name of one function
    response_schema: dict[str, Any] | None = None  # {} for json_object
    temperature: float = 1.0  # as it acts: narrowed by top_p and top_k
    parallel: bool = True  # whether several tools may be called at once
    seed: int | None = None
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    stream_usage: bool = False

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(picture for message in self.messages for picture in message.pictures)

    def last_picture(self) -> Picture:
        """The last picture sent; refused where there is none."""
        if not self.pictures:
            raise bad("This model needs an image: send an image_url part.", "messages", "image_required")
        return self.pictures[-1]

    @property
    def system(self) -> str:
        return "\n".join(m.text for m in self.messages if m.role in ("system", "developer"))

    @property
    def fingerprint(self) -> str:
        """The same text for the same model, messages, pictures and offered tools, whatever their ids are."""
        parts: list[Any] = [self.model, sorted(self.tools), self.tool_choice]
        for message in self.messages:
            calls = [(call.name, call.arguments) for call in message.tool_calls]
            parts.append((message.role, message.text, [p.sha256 for p in message.pictures], calls))
        return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


def read_request(body: Any, vision: dict[str, bool]) -> ChatRequest:
    """The checked request; `vision` says for each served model whether it takes pictures."""
    if not isinstance(body, dict):
        raise bad("We could not parse the JSON body of your request. The body must be a JSON object.")
    model = body.get("model")
    if not model:
        raise bad("you must provide a model parameter", "model")
    if not isinstance(model, str):
        raise wrong_type("model", "a string", model)
    if model not in vision:
        text = f"The model `{model}` does not exist or you do not have access to it."
        raise ChatError(404, text, code="model_not_found")
    for name in body:
        if name not in PARAMETERS:
            raise bad(f"Unknown parameter: '{name}'.", str(name), "unknown_parameter")
    messages = _read_messages(body, vision[model])
    _check_length(messages)
    tools = _read_tools(body.get("tools"))
    options = body.get("stream_options")
    stream = _flag(body, "stream")
    if options is not None and not stream:
        raise bad("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    stop = body.get("stop") or ()
    if not isinstance(stop, str | list | tuple):
        raise wrong_type("stop", "a string or an array of strings", stop)
    return ChatRequest(
        model=model,
        messages=messages,
        tools=tools,
        tool_notes=_read_tool_notes(body.get("tools")),
        tool_choice=_read_tool_choice(body.get("tool_choice"), tools),
        response_schema=_read_response_format(body.get("response_format")),
        temperature=_effective_temperature(body),
        parallel=body.get("parallel_tool_calls") is None or _flag(body, "parallel_tool_calls"),
        seed=_integer(body, "seed", None, -(2**63), 2**63 - 1),
        choices=_integer(body, "n", 1, 1, MAX_CHOICES) or 1,
        max_tokens=_integer(body, "max_completion_tokens", _integer(body, "max_tokens", None, 1, 10**7), 1, 10**7),
        stop=(stop,) if isinstance(stop, str) else tuple(str(item) for item in stop),
        stream=stream,
        stream_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _effective_temperature(body: dict[str, Any]) -> float:
    """The temperature as it acts: a smaller nucleus or fewer candidates leave less to chance."""
    temperature = _number(body, "temperature", 1.0, 0, 2)
    nucleus = _number(body, "top_p", 1.0, 0, 1)
    few = _integer(body, "top_k", None, -1, 10**6)
    for name, low, high in (("presence_penalty", -2, 2), ("frequency_penalty", -2, 2), ("min_p", 0, 1)):
        _number(body, name, 0.0, low, high)
    _number(body, "repetition_penalty", 1.0, 0.01, 2)
    if few == 1 or nucleus == 0:
        return 0.0
    return float(temperature * nucleus**0.5)


def _check_length(messages: tuple[Message, ...]) -> None:
    tokens = sum(len(message.text.encode()) for message in messages) // 4
    tokens += sum(len(call.arguments) for message in messages for call in message.tool_calls) // 4
    if tokens > CONTEXT_TOKENS:
        text = (
            f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your messages resulted in "
            f"{tokens} tokens. Please reduce the length of the messages."
        )
        raise bad(text, "messages", "context_length_exceeded")


def _read_messages(body: dict[str, Any], takes_pictures: bool) -> tuple[Message, ...]:
    raw = body.get("messages")
    if raw is None:
        raise missing("messages")
    if not isinstance(raw, list):
        raise wrong_type("messages", "an array of objects", raw)
    if not raw:
        text = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
        raise bad(text, "messages", "empty_array")
    messages = tuple(_read_message(item, f"messages[{i}]", takes_pictures) for i, item in enumerate(raw))
    if sum(len(message.pictures) for message in messages) > MAX_IMAGES:
        raise bad(f"Too many images. At most {MAX_IMAGES} are allowed.", "messages", "too_many_images")
    _check_tool_order(messages)
    return messages


def _read_message(raw: Any, where: str, takes_pictures: bool) -> Message:
    if not isinstance(raw, dict):
        raise wrong_type(where, "an object", raw)
    role = raw.get("role")
    if role is None:
        raise missing(f"{where}.role")
    if not isinstance(role, str) or role not in ROLES:
        allowed = ", ".join(f"'{name}'" for name in ROLES)
        raise bad(f"Invalid value: '{role}'. Supported values are: {allowed}.", f"{where}.role", "invalid_value")
    listed = raw.get("tool_calls") or []
    if not isinstance(listed, list):
        raise wrong_type(f"{where}.tool_calls", "an array of objects", listed)
    calls = tuple(_read_call(item, f"{where}.tool_calls[{i}]") for i, item in enumerate(listed))
    content = raw.get("content")
    if content is None and not (role == "assistant" and (calls or raw.get("refusal"))):
        raise wrong_type(f"{where}.content", "a string or an array of objects", None)
    text, pictures = _read_content(content, f"{where}.content", takes_pictures)
    call_id = raw.get("tool_call_id")
    if role == "tool" and not isinstance(call_id, str):
        raise missing(f"{where}.tool_call_id")
    return Message(role, text, pictures, calls, call_id)


def _read_content(content: Any, where: str, takes_pictures: bool) -> tuple[str, tuple[Picture, ...]]:
    if content is None:
        return "", ()
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise wrong_type(where, "a string or an array of objects", content)
    texts, pictures = [], []
    for i, part in enumerate(content):
        at = f"{where}[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            if not isinstance(part.get("text"), str):
                raise wrong_type(f"{at}.text", "a string", part.get("text"))
            texts.append(part["text"])
        elif kind == "image_url":
            if not takes_pictures:
                raise bad("Invalid content type. image_url is only supported by certain models.", at, "invalid_value")
            image_url = part.get("image_url")
            url = image_url.get("url") if isinstance(image_url, dict) else None
            if not isinstance(url, str):
                raise missing(f"{at}.image_url.url")
            pictures.append(open_data_uri(url, at))
        else:
            text = f"Invalid value: '{kind}'. Supported values are: 'text' and 'image_url'."
            raise bad(text, f"{at}.type", "invalid_value")
    return "\n".join(texts), tuple(pictures)


def _read_call(raw: Any, where: str) -> ToolCall:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict) or not isinstance(raw.get("id"), str):
        raise missing(f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise missing(f"{where}.function.name")
    if not isinstance(arguments, str):
        raise wrong_type(f"{where}.function.arguments", "a string", arguments)
    return ToolCall(raw["id"], name, arguments)


def _check_tool_order(messages: tuple[Message, ...]) -> None:
    """Each tool message answers a call just made, and each call is answered before the talk goes on."""
    open_ids: set[str] = set()
    for i, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in open_ids:
                text = (
                    "Invalid parameter: messages with role 'tool' must be a response to "
                    "a preceding message with 'tool_calls'."
                )
                raise bad(text, f"messages.[{i}].role")
            open_ids.discard(message.tool_call_id)
            continue
        if open_ids:
            _raise_unanswered(open_ids, i)
        open_ids = {call.id for call in message.tool_calls}
    if open_ids:
        _raise_unanswered(open_ids, len(messages))


def _raise_unanswered(open_ids: set[str], at: int) -> None:
    text = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(sorted(open_ids))}"
    )
    raise bad(text, f"messages.[{at}].role")


def _read_tools(raw: Any) -> dict[str, dict[str, Any]]:
    if raw is None:
        return {}
    if not isinstance(raw, list):
        raise wrong_type("tools", "an array of objects", raw)
    tools: dict[str, dict[str, Any]] = {}
    for i, item in enumerate(raw):
        function = item.get("function") if isinstance(item, dict) and item.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise missing(f"tools[{i}].function")
        tools[function["name"]] = function.get("parameters") or {}
    return tools


def _read_tool_notes(raw: Any) -> dict[str, str]:
    return {item["function"]["name"]: str(item["function"].get("description") or "") for item in raw or ()}


def _read_tool_choice(raw: Any, tools: dict[str, dict[str, Any]]) -> str:
    if raw is None:
        return "auto"
    if isinstance(raw, str) and raw in ("none", "auto", "required"):
        if raw == "required" and not tools:
            raise bad("'tool_choice' is only allowed when 'tools' are specified.", "tool_choice")
        return str(raw)
    function = raw.get("function") if isinstance(raw, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in tools:
        text = f"Invalid value for 'tool_choice': no function named {name!r} was specified in 'tools'."
        raise bad(text, "tool_choice")
    return str(name)


def _read_response_format(raw: Any) -> dict[str, Any] | None:
    if raw is None:
        return None
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        text = f"Invalid value: '{kind}'. Supported values are: 'json_object', 'json_schema', and 'text'."
        raise bad(text, "response_format.type", "invalid_value")
    holder = raw.get("json_schema")
    if not isinstance(holder, dict) or not holder.get("name"):
        raise missing("response_format.json_schema.name")
    schema = holder.get("schema")
    if not isinstance(schema, dict):
        raise missing("response_format.json_schema.schema")
    return schema


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(name, "a boolean", value)
    return bool(value)


def _number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = _bounded(body, name, "decimal", int | float, low, high)
    return default if value is None else float(value)


def _integer(body: dict[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = _bounded(body, name, "integer", int, low, high)
    return default if value is None else value


def _bounded(body: dict[str, Any], name: str, kind: str, types: Any, low: float, high: float) -> Any:
    """The parameter, or None where it is not given; refused where it is not of its kind or out of its bounds."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, types):
        raise wrong_type(name, "a decimal" if kind == "decimal" else "an integer", value)
    if not low <= value <= high:
        side, sign, limit = ("above_max", "<=", high) if value > high else ("below_min", ">=", low)
        shape = "g" if kind == "decimal" else "d"
        text = f"Invalid '{name}': expected a value {sign} {limit:{shape}}, but got {value:{shape}} instead."
        raise bad(text, name, f"{kind}_{side}_value")
    return value
