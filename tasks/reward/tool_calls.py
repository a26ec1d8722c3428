"""Tool calls that stand in a model's text and were not executed: what a call names is a question, not an answer.

A server that knows a model's form takes its calls out of the text. What reaches a reader as text was never run: bare or
fenced JSON, `<function=…>`, ReAct's `Action Input:`, `[TOOL_CALLS]` and the special tokens of other chat templates,
calls written as code. `answer.py` reads none of it, and none of the words that lead up to it.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from tasks.reward.fields import object_spans

# What a tag has to be called for its content to be a call, beside the last part of tools' own names.
_TOOL = r"[a-z][a-z0-9]{0,20}(?:_[a-z0-9]{1,20}){0,4}_(?:tool|query|search|tips|geocode|zoom|detail|lookup|web|map|api)"
CALL_TAGS = (
    r"tool_?calls?|function_?calls?|tool_?uses?|tool_?codes?|tools?|functions?|invokes?|actions?|action_?inputs?"
    rf"|parameters?|arguments?|{_TOOL}"
)
_SAID = ("lat", "lon", "latitude", "longitude", "coordinates", "answer", "finalanswer")
_NAMES = {"name", "tool", "toolname", "function", "functionname", "action", "recipientname", "api", "apiname", "method"}
_SURE_NAMES = {"tool", "toolname", "function", "functionname", "recipientname", "apiname"}
_ARGUMENTS = {"arguments", "args", "parameters", "params", "input", "actioninput", "toolinput", "toolargs", "kwargs"}
_ARGUMENTS |= {"toolarguments", "toolparameters", "functionarguments", "argumentsjson"}
_CALLS = {"toolcall", "toolcalls", "functioncall", "functioncalls", "tooluse", "tooluses"}
_IDENTIFIER = re.compile(r"[A-Za-z][\w.:/-]{0,100}", re.ASCII)

_HINTS = ("arg", "param", "input", "function", "tool", "call", "action", "_")  # no call is without one of them
_NAME_KEY = r"[\"']?\b(?:name|tool(?:_name)?|function(?:_name)?|action|recipient_name)[\"']?\s{0,3}[:=]\s{0,3}"
_ARGUMENTS_KEY = r"[\"']?\b(?:arguments|args|parameters|params|(?:action_|tool_)?input)[\"']?\s{0,3}[:=]"
_LOOSE_NAME = re.compile(rf"{_NAME_KEY}[\"']?[A-Za-z][\w.-]{{0,80}}[\"']?\s{{0,3}}[,\n}}]", re.IGNORECASE | re.ASCII)
_LOOSE_ARGUMENTS = re.compile(_ARGUMENTS_KEY, re.IGNORECASE)
# An object that begins as a call and does not end: generation ran out of tokens.
_OPENED = re.compile(
    rf"\{{\s{{0,9}}{_NAME_KEY}[\"'][\w.-]{{1,80}}[\"']\s{{0,3}},\s{{0,9}}{_ARGUMENTS_KEY}", re.IGNORECASE | re.ASCII
)
# Marks of chat templates, each with what closes it; without that the call ends with its JSON, else with the text.
_MARK = re.compile(
    r"(?P<list>\[TOOL_CALLS?\])|(?P<token><[|｜](?:python_tag|tool[_▁]calls?[^<>|｜]{0,20}|action_start)[|｜]>)"
    r"|(?P<channel>\bto=(?:functions|tools|browser)[.]?[\w.]{0,80})|(?P<phi>\bfunctools(?=\s?\[))"
    r"|(?P<fence>```(?:tool_code|tool_call|tool|function_call|function)s?\b)",
    re.IGNORECASE,
)
_CLOSED = {
    "list": re.compile(r"\[/TOOL_CALLS?\]", re.IGNORECASE),
    "token": re.compile(r"<[|｜](?:tool[_▁]calls?[^<>|｜]{0,20}end|action_end|eom_id|eot_id)[|｜]>", re.IGNORECASE),
    "channel": re.compile(r"<\|(?:call|end|start)\|>"),
    "phi": re.compile(r"(?!)"),
    "fence": re.compile(r"```"),
}
_INPUT = r"(?:input|arguments?|args|parameters?|params)"
_LABELLED = re.compile(
    r"(?:^|(?<=>))[ \t>*#`-]{0,6}(?:"
    rf"(?:action|tool|function)[ _]{_INPUT}[*`]{{0,3}}\s?:"  # ReAct's second line, with or without its first
    r"|(?:action|(?:tool|function)(?:[ _](?:call|name))?|name)[*`]{0,3}\s?:[*` \t]{0,4}[\w.]{1,80}[*`]{0,3}"
    rf"(?:[ \t]{{0,3}}(?=[\[({{])|\s{{1,4}}[>*#`-]{{0,4}}[ \t]?{_INPUT}[*`]{{0,3}}\s?:))",
    re.IGNORECASE | re.MULTILINE,
)
_OBSERVED = re.compile(
    r"\s{0,4}[*#`>-]{0,4}\s?(?:observation|tool (?:result|response|output))[*`]{0,3}\s?:", re.IGNORECASE
)
_AFTER_OBSERVED = re.compile(r"^[ \t>*#-]{0,6}(?:thought|final answer|answer)\b|<answer", re.IGNORECASE | re.MULTILINE)
# Code: `functions.anything(…)`, a name such as static_map_query(…), or any name_with_parts(keyword=…)
_CALLED = re.compile(r"(?<![\w.])([A-Za-z][\w.]{2,100})\s?\((?P<keyword>\s{0,9}[a-z]\w{0,40}\s?=)?", re.ASCII)
_CODE_NAME = re.compile(rf"(?:functions|tools|default_api)\..*|{_TOOL}", re.IGNORECASE)
_MOST = 200  # marks that are read one by one; all after them is a flood of calls
_BEFORE_VALUE = re.compile(r"[^\n\[{]{0,100}\n?[^\n\[{]{0,20}(?=[\[{])")
_PARENTHESES = re.compile(r"[()]")
_DECODER = json.JSONDecoder()


def call_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of every call that stands in a text, in order and without overlap."""
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return []
    merged: list[tuple[int, int]] = []
    for start, end in sorted((*_marked(text), *_objects(text), *_code(text))):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _marked(text: str) -> Iterator[tuple[int, int]]:
    at, unclosed, count = 0, set[str](), 0
    while (mark := _MARK.search(text, at)) is not None:
        count += 1
        if count > _MOST:
            yield mark.start(), len(text)
            return
        kind = str(mark.lastgroup)
        closed = None if kind in unclosed else _CLOSED[kind].search(text, mark.end())
        if closed is None:
            unclosed.add(kind)  # looked for once: a flood of marks stays linear
        at = closed.end() if closed else _value_end(text, mark.end()) or len(text)
        yield mark.start(), at
    at = 0
    while (label := _LABELLED.search(text, at)) is not None:
        line = text.find("\n", label.end())
        at = _value_end(text, label.end()) or (line if line >= 0 else len(text))
        if _OBSERVED.match(text, at):  # what the model imagined that the tool said
            after = _AFTER_OBSERVED.search(text, at)
            at = after.start() if after else len(text)
        yield label.start(), at


def _value_end(text: str, start: int) -> int | None:
    """Where the JSON object or list that begins soon after a position ends; None if there is none."""
    opened = _BEFORE_VALUE.match(text, start)
    if opened is None:
        return None
    try:
        return _DECODER.raw_decode(text, opened.end())[1]
    except (ValueError, RecursionError):
        return None


def _objects(text: str) -> Iterator[tuple[int, int]]:
    spans = object_spans(text)
    for start, end in spans:
        if end - start > 10 and _is_call_text(text[start:end]):
            yield start, end
    opened = [match.start() for match in _OPENED.finditer(text)]
    if opened:
        within = {start for start, _ in spans}
        cut = next((at for at in opened if at not in within and not any(a < at < b for a, b in spans[-50:])), None)
        if cut is not None:
            yield cut, len(text)


def _is_call_text(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        head = text[:2000]
        return _LOOSE_NAME.search(head) is not None and _LOOSE_ARGUMENTS.search(head) is not None
    return _is_call(value)


def _is_call(value: Any, depth: int = 0) -> bool:
    """Whether an object is a call, or holds one and says nothing besides."""
    if not isinstance(value, dict) or depth > 3:
        return False
    plain = {re.sub(r"[\W_]", "", str(key)).casefold(): part for key, part in value.items()}
    if any(name in plain for name in _SAID):
        return False
    named = [part for name, part in plain.items() if name in _NAMES and _names_tool(part)]
    if plain.keys() & _CALLS or (named and plain.keys() & _ARGUMENTS):
        return True
    if any(_names_tool(plain[name]) for name in plain.keys() & _SURE_NAMES):
        return True
    if len(value) == 1 and re.fullmatch(_TOOL, str(next(iter(value))), re.IGNORECASE):
        return True
    return any(_is_call(part, depth + 1) for part in list(value.values())[:20])


def _names_tool(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("name"), str)
    return isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None


def _code(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while (call := _CALLED.search(text, at)) is not None:
        at = call.end()
        if not (_CODE_NAME.fullmatch(call[1]) or ("_" in call[1] and call["keyword"])):
            continue
        depth, at = 1, len(text)
        for bracket in _PARENTHESES.finditer(text, call.end()):
            depth += 1 if bracket[0] == "(" else -1
            if depth == 0:
                at = bracket.end()
                break
        yield call.start(), at
