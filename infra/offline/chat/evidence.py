"""The agent that also says which results were useful: it searches by a crop first, and marks what names its own belief.

Such a prompt has boxes in thousandths, several queries a call and an answer in one line. The request is read as the
agent knows requests, in pixels and with one query, and its reply is written back in the prompt's form.
"""

import json
import random
import re
from dataclasses import replace
from typing import Any

from infra.offline.chat import agent
from infra.offline.chat.beliefs import weigh_notes
from infra.offline.chat.notes import read_notes
from infra.offline.chat.protocol import ChatRequest, Message, Reply
from infra.offline.words import fold
from schemas.messages import ToolCall, json_object

LOOK = "image_search"
MARGIN = 0.35  # of a line's size around it: a sign is more than its line
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def evidence_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """The agent's reply; where the prompt asks for `<useful>` lists, with them."""
    if "<useful>" not in request.prompt or not request.pictures:
        return agent.agent_reply(request, dice)
    whole = request.pictures[0]
    plain = _plain(request, whole.width, whole.height)
    reply = _first_look(request, plain, dice) or agent.agent_reply(plain, dice)
    calls = tuple((name, _as_asked(text, whole.width, whole.height)) for name, text in reply.calls)
    thought, closed, rest = (reply.content or "").rpartition("</think>")
    return Reply(f"{thought}{closed}{_marks(request, plain, dice)}{_ANSWER.sub(_in_one_line, rest)}", calls)


def _plain(request: ChatRequest, width: int, height: int) -> ChatRequest:
    """The request with boxes in pixels and one query, and without the search by a crop among the tools."""

    def call(made: ToolCall) -> ToolCall:
        arguments = json_object(made.arguments) or {}
        if made.name == LOOK:
            arguments = {"query": "that sign"}
        elif isinstance(arguments.get("bbox_2d"), list):
            arguments["bbox_2d"] = _scaled(arguments["bbox_2d"], width / 1000, height / 1000)
        if isinstance(arguments.get("queries"), list):
            arguments = {"query": " ".join(str(query) for query in arguments["queries"])}
        return replace(made, arguments=json.dumps(arguments, ensure_ascii=False))

    messages = tuple(replace(m, tool_calls=tuple(call(made) for made in m.tool_calls)) for m in request.messages)
    return replace(request, messages=messages, tools={n: t for n, t in request.tools.items() if n != LOOK})


def _first_look(request: ChatRequest, plain: ChatRequest, dice: random.Random) -> Reply | None:
    """A search by the largest sign it can read, before anything else."""
    if LOOK not in request.tools or any(m.role == "assistant" for m in request.messages):
        return None
    notes = read_notes(plain, dice)
    lines = notes.picture.readable if notes.picture is not None else ()
    if not lines or not notes.calls_left:
        return None
    left, top, right, bottom = max(lines, key=lambda line: line.height * (line.box[2] - line.box[0])).box
    wide, high = MARGIN * (right - left) + 4, MARGIN * (bottom - top) + 4
    box = [max(0, left - wide), max(0, top - high), right + wide, bottom + high]
    why = "The largest sign may stand on some page, so I search for pictures of it."
    return Reply(f"<think>{' '.join(notes.fresh)} {why}</think>", ((LOOK, json.dumps({"bbox_2d": box})),))


def _as_asked(text: str, width: int, height: int) -> str:
    """Arguments with the box in thousandths and the query in a list; a spoilt call stays spoilt."""
    arguments = json_object(text)
    if arguments is None:
        return text
    if isinstance(arguments.get("bbox_2d"), list):
        box = _scaled(arguments["bbox_2d"], 1000 / width, 1000 / height)
        arguments["bbox_2d"] = [min(1000, max(0, round(side))) for side in box]
    if isinstance(arguments.get("query"), str):
        arguments["queries"] = [arguments.pop("query")]
    return json.dumps(arguments, ensure_ascii=False)


def _scaled(box: list[Any], x: float, y: float) -> list[Any]:
    return [side * (y if at % 2 else x) if isinstance(side, int | float) else side for at, side in enumerate(box)]


def _marks(request: ChatRequest, plain: ChatRequest, dice: random.Random) -> str:
    """The list of what names the town it believes in, if a search has just answered."""
    last: Message = request.messages[-1]
    rows = (json_object(last.text) or {}).get("results") if last.role == "tool" else None
    if not isinstance(rows, list):
        return ""
    best = weigh_notes(read_notes(plain, dice)).best
    town = fold(best.city) if best is not None and best.city else ""
    found = [
        row["number"]
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("number"), int)
        and town
        and f" {town} " in f" {fold(' '.join(str(row.get(name, '')) for name in ('title', 'content')))} "
    ]
    return f"<useful>{found}</useful>"


def _in_one_line(match: re.Match[str]) -> str:
    answer = json_object(match[1]) or {}
    country, city = (str(answer.get(name) or "unknown").replace(",", "") for name in ("country", "city"))
    lat, lon = (float(answer.get(name) or 0.0) for name in ("lat", "lon"))
    return f"<answer>{country}, {city}, {lat:.5f}, {lon:.5f}</answer>"
