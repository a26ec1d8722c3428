"""A chat completion request, read and checked as the OpenAI API checks it, and the completion that answers it."""

import base64
import hashlib
import io
import json
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from PIL import Image
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse

MAX_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_CHOICES = 16
MAX_IMAGES = 32
# What pydantic calls an error, to OpenAI's code for it; of any other the type is wrong.
_CODES = {
    "missing": "missing_required_parameter",
    "literal_error": "invalid_value",
    "union_tag_invalid": "invalid_value",
    "too_short": "empty_array",
}
PATCH_PX = 28  # one image token stands for a 28 x 28 patch, as in Qwen2.5-VL
CONTEXT_TOKENS = 131_072  # of every served model
# What vendors and vLLM take; anything else is refused by name, as a misspelt parameter would go unnoticed.
PARAMETERS = frozenset((
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "temperature", "top_p",
    "top_k", "min_p", "n", "seed", "max_tokens", "max_completion_tokens", "stop", "stream", "presence_penalty",
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


def open_data_uri(url: str) -> Picture:
    """The picture in a base64 data URI; a remote URL is refused, since this server fetches nothing."""
    head, _, payload = url.partition(",")
    if not head.startswith("data:"):
        text = "Failed to download image. Only base64 data URIs are accepted here."
        raise bad(text, "messages", "invalid_image_url")
    try:
        data = base64.b64decode(payload, validate=head.endswith(";base64"))
    except ValueError:
        raise bad("Invalid base64 image_url.", "messages", "invalid_base64") from None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if len(data) > MAX_BYTES or width * height > MAX_PIXELS:
                raise bad("Image is too large. The limits are 20 MB and 40 megapixels.", "messages", "image_too_large")
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        text = "You uploaded an unsupported image. Please make sure your image is valid png, jpeg, gif or webp."
        raise bad(text, "messages", "invalid_image_format") from None
    return Picture(data, hashlib.sha256(data).hexdigest(), width, height)


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Text(_Checked):
    type: Literal["text"]
    text: str


class _Image(_Checked):
    type: Literal["image_url"]
    url: str = Field(validation_alias=AliasPath("image_url", "url"))


class Call(_Checked):
    """A tool call as a model wrote it; `arguments` need not be JSON."""

    id: str
    name: str = Field(validation_alias=AliasPath("function", "name"))
    arguments: str = Field(validation_alias=AliasPath("function", "arguments"))


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


class Message(_Checked):
    """One message of a request; its pictures are decoded once, when it is read."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[Annotated[_Text | _Image, Field(discriminator="type")]], BeforeValidator(_parts)] = []
    tool_calls: Annotated[list[Call], BeforeValidator(_parts)] = []
    tool_call_id: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content if isinstance(part, _Text))

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(open_data_uri(part.url) for part in self.content if isinstance(part, _Image))


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: tuple[Message, ...]
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)  # function name -> parameters schema
    tool_choice: str = "auto"  # none | auto | required | the name of one function
    response_schema: dict[str, Any] | None = None  # {} for json_object
    temperature: float = 1.0  # as it acts: narrowed by top_p and top_k
    seed: int | None = None
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(picture for message in self.messages for picture in message.pictures)

    def last_picture(self) -> Picture:
        """The last picture sent; refused where there is none."""
        if not self.pictures:
            raise bad("This model needs an image: send an image_url part.", "messages", "image_required")
        return self.pictures[-1]

    def said_by(self, *roles: str) -> str:
        """The words of these roles."""
        return "\n".join(message.text for message in self.messages if message.role in roles)

    @property
    def prompt(self) -> str:
        """The words that say what to do and how to answer: the system's and the user's."""
        return self.said_by("system", "developer", "user")

    @property
    def fingerprint(self) -> str:
        """The same text for the same model, messages, pictures and offered tools, whatever their ids are."""
        parts: list[Any] = [self.model, sorted(self.tools), self.tool_choice]
        for message in self.messages:
            calls = [(call.name, call.arguments) for call in message.tool_calls]
            parts.append((message.role, message.text, [p.sha256 for p in message.pictures], calls))
        return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


class _Tool(_Checked):
    type: Literal["function"]
    name: str = Field(validation_alias=AliasPath("function", "name"))
    parameters: dict[str, Any] | None = Field(None, validation_alias=AliasPath("function", "parameters"))


class _Plain(_Checked):
    type: Literal["text", "json_object"]


class _Structured(_Checked):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(validation_alias=AliasPath("json_schema", "schema"))


class _Body(_Checked):
    messages: list[Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: str | _Tool | None = None
    response_format: Annotated[_Plain | _Structured, Field(discriminator="type")] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=10**6)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1, le=10**7)
    max_completion_tokens: int | None = Field(None, ge=1, le=10**7)
    stop: str | list[str] | None = None
    stream: Literal[False] | None = None


def read_request(body: Any, vision: dict[str, bool]) -> ChatRequest:
    """The checked request; `vision` says for each served model whether it takes pictures."""
    if not isinstance(body, dict):
        raise bad("We could not parse the JSON body of your request. The body must be a JSON object.")
    model = body.get("model")
    if not model or not isinstance(model, str):
        raise bad("you must provide a model parameter", "model")
    if model not in vision:
        text = f"The model `{model}` does not exist or you do not have access to it."
        raise ChatError(404, text, code="model_not_found")
    for name in body:
        if name not in PARAMETERS:
            raise bad(f"Unknown parameter: '{name}'.", str(name), "unknown_parameter")
    try:
        parsed = _Body.model_validate(body)
    except ValidationError as error:
        raise _refusal(error) from None
    tools = {tool.name: tool.parameters or {} for tool in parsed.tools or ()}
    choice, form, stop = parsed.tool_choice or "auto", parsed.response_format, parsed.stop or ()
    if isinstance(choice, _Tool):
        choice = choice.name
    if choice not in ("none", "auto", *tools) and (choice != "required" or not tools):
        raise bad(f"Invalid value for 'tool_choice': {choice!r} needs functions in 'tools'.", "tool_choice")
    plain: dict[str, Any] | None = None if form is None or form.type == "text" else {}
    return ChatRequest(
        model=model,
        messages=_checked(tuple(parsed.messages), vision[model]),
        tools=tools,
        tool_choice=choice,
        response_schema=form.schema_ if isinstance(form, _Structured) else plain,
        temperature=_effective_temperature(parsed),
        seed=parsed.seed,
        choices=parsed.n or 1,
        max_tokens=parsed.max_completion_tokens or parsed.max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _refusal(error: ValidationError) -> ChatError:
    """The first thing that is wrong, in OpenAI's terms."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    code = _CODES.get(first["type"], "invalid_type")
    for kind, limit in first.get("ctx", {}).items():
        if kind in ("ge", "le"):
            side = "below_min" if kind == "ge" else "above_max"
            code = f"{'decimal' if isinstance(limit, float) else 'integer'}_{side}_value"
    return bad(f"Invalid '{param}': {first['msg']}.", param, code)


def _effective_temperature(parsed: _Body) -> float:
    """The temperature as it acts: a smaller nucleus or fewer candidates leave less to chance."""
    temperature, nucleus = (1.0 if value is None else value for value in (parsed.temperature, parsed.top_p))
    return 0.0 if parsed.top_k == 1 or nucleus == 0 else float(temperature * nucleus**0.5)


def _checked(messages: tuple[Message, ...], takes_pictures: bool) -> tuple[Message, ...]:
    """The messages, if they are what the model takes and follow on each other as the API wants it."""
    for i, message in enumerate(messages):
        is_said = message.content or (message.role == "assistant" and (message.tool_calls or message.refusal))
        if not is_said or (message.role == "tool" and message.tool_call_id is None):
            at = f"messages[{i}].{'tool_call_id' if is_said else 'content'}"
            raise bad(f"Missing required parameter: '{at}'.", at, "missing_required_parameter")
        if not takes_pictures and any(isinstance(part, _Image) for part in message.content):
            text = "Invalid content type. image_url is only supported by certain models."
            raise bad(text, f"messages[{i}].content", "invalid_value")
    # Each tool message answers a call just made, and each call is answered before the talk goes on.
    unanswered: set[str | None] = set()
    for i, message in enumerate([*messages, Message(role="user")]):
        is_result = message.role == "tool"
        if message.tool_call_id not in unanswered if is_result else unanswered:
            text = "messages with role 'tool' must respond, one each, to the 'tool_calls' of the message before them"
            raise bad(f"Invalid parameter: {text}.", f"messages.[{i}].role")
        unanswered = unanswered - {message.tool_call_id} if is_result else {call.id for call in message.tool_calls}
    if sum(len(message.pictures) for message in messages) > MAX_IMAGES:
        raise bad(f"Too many images. At most {MAX_IMAGES} are allowed.", "messages", "too_many_images")
    calls = [call.arguments for message in messages for call in message.tool_calls]
    tokens = sum(text_tokens(text) for text in [*(message.text for message in messages), *calls])
    if tokens > CONTEXT_TOKENS:
        text = f"This model's maximum context length is {CONTEXT_TOKENS} tokens, your messages have {tokens}."
        raise bad(text, "messages", "context_length_exceeded")
    return messages


@dataclass(frozen=True)
class Reply:
    """What a model says, one choice: text, and function calls as (name, arguments text)."""

    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    is_cut: bool = False  # ends in the middle of its text

    def limited(self, request: ChatRequest) -> "Reply":
        """The reply cut at a stop word or at max_tokens."""
        content, limit = self.content or "", request.max_tokens
        for word in filter(None, request.stop):
            content = content.split(word, 1)[0]
        if limit is not None and text_tokens(content) > limit:
            return Reply(content.encode()[: limit * 4].decode(errors="ignore"), is_cut=True)
        return replace(self, content=None if self.content is None else content)

    @property
    def tokens(self) -> int:
        return text_tokens(self.content or "") + sum(text_tokens(name + text) + 8 for name, text in self.calls)


def text_tokens(text: str) -> int:
    """About how many tokens a text is: a token is four bytes of UTF-8."""
    return -(-len(text.encode()) // 4)


def prompt_tokens(request: ChatRequest) -> int:
    total = 3
    for message in request.messages:
        total += 4 + text_tokens(message.text)
        total += sum(text_tokens(call.name + call.arguments) + 8 for call in message.tool_calls)
        total += sum(-(-p.width // PATCH_PX) * -(-p.height // PATCH_PX) for p in message.pictures)
    return total + sum(text_tokens(name + json.dumps(schema)) for name, schema in request.tools.items())


def completion(request: ChatRequest, replies: list[Reply]) -> dict[str, Any]:
    """The `chat.completion` object.

    Its id is the same for the same question, so that a repeated run writes the same rows.
    """
    question = f"{request.fingerprint}/{request.seed}/{request.temperature}/{request.choices}"
    name = f"chatcmpl-{_digest(question, 29)}"
    limited = [reply.limited(request) for reply in replies]
    prompt, written = prompt_tokens(request), sum(reply.tokens for reply in limited)
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [_choice(reply, name, i) for i, reply in enumerate(limited)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "system_fingerprint": "fp_geofix_offline",
    }


def _choice(reply: Reply, completion_id: str, index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{_digest(f'{completion_id}/{index}/{k}', 24)}",
                "type": "function",
                "function": {"name": name, "arguments": text},
            }
            for k, (name, text) in enumerate(reply.calls)
        ]
    finish = "length" if reply.is_cut else "tool_calls" if reply.calls else "stop"
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
