"""Tool calls that a model wrote into its text: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

Servers without a parser for a model's format pass such text on as content. Read are the forms of Hermes and Qwen, with
any white space, several calls, text before and between them, and a last call whose closing tag is missing.
"""

import json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MOST_CALLS = 64
_decoder = json.JSONDecoder()


def split_tool_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(the text without its calls, (name, raw arguments) of each).

    A text with a call that cannot be read, or inside its thought, is returned as it is: what a model meant is not
    guessed.
    """
    start = text.find(OPEN, max(0, text.rfind("</think>")))
    if start < 0 or text.count(OPEN) > MOST_CALLS:
        return text, []
    said, calls = [text[:start]], list[tuple[str, str]]()
    while start >= 0:
        found = _call(text, start + len(OPEN))
        if found is None:
            return text, []
        name, arguments, end = found
        calls.append((name, arguments))
        start = text.find(OPEN, end)
        said.append(text[end : start if start >= 0 else len(text)])
    return "".join(said).strip(), calls


def _call(text: str, position: int) -> tuple[str, str, int] | None:
    """Name, arguments and where the call ends."""
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        value, end = _decoder.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        return None
    key = "arguments" if "arguments" in value else "parameters"
    arguments = value.get(key, {})
    rest = text[end:].lstrip()
    if rest and not rest.startswith(CLOSE):
        return None
    closed = text.find(CLOSE, end)
    written = arguments if isinstance(arguments, str) else _as_written(text[position:end], key, arguments)
    return name, written, closed + len(CLOSE) if closed >= 0 else len(text)


def _as_written(call: str, key: str, arguments: object) -> str:
    """The arguments character for character as the model wrote them: a stored conversation repeats them."""
    _, found, rest = call.partition(f'"{key}"')
    rest = rest.lstrip().removeprefix(":").lstrip()
    try:
        value, end = _decoder.raw_decode(rest) if found else (None, 0)
    except (ValueError, RecursionError):
        return as_text(arguments)
    return rest[:end] if end and value == arguments else as_text(arguments)


def as_text(arguments: object) -> str:
    """Arguments as the protocol has them: text. Some servers and models send an object."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return ""  # no JSON: the caller refuses the call as malformed
