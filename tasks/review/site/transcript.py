"""A stored conversation with an agent, as steps a person reads: thoughts, calls, results, answer."""

import json
import re
from typing import Any

from schemas.messages import Message
from tasks.agent.readable import arguments_of, found_in
from tasks.review.site.words import evidence

_THINK = re.compile(r"<think>(.*?)(?:</think>|$)", re.S)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.S)
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|$)", re.S)
_PICTURE = re.compile(r"sha256:([0-9a-f]{64})\.(jpg|png)")
_LONGEST = 4000

Step = dict[str, Any]


def conversation(row: dict[str, Any], view: tuple[int | None, int | None]) -> dict[str, Any]:
    """What the page of a conversation shows of its row; without the size of the view no box is drawn."""
    return {
        "answer": row["answer"] or "",
        "guess": [row["lat"], row["lon"]] if row["lat"] is not None else None,
        "truth": [row["true_lat"], row["true_lon"]] if row["true_lat"] is not None else None,
        "width": row["width"],
        "height": row["height"],
        "tokens": (row["prompt_tokens"] or 0) + (row["completion_tokens"] or 0),
        "cost_usd": row["cost_usd"],
        "steps": steps_of(row["messages_json"], *view),
    }


def steps_of(messages_json: str, width: int | None, height: int | None) -> list[Step]:
    """The steps in order; width and height are those of the view that models were shown.

    A box is given in shares of the picture: left, top, width, height.
    """
    messages: list[Message] = json.loads(messages_json or "[]")
    steps: list[Step] = []
    for message in messages:
        role = message.get("role")
        if role == "system":
            continue
        text, images = _content(message.get("content"))
        if role == "assistant":
            steps += _said(message, text, width, height)
        elif role == "tool":
            lines = [entry.line()[:_LONGEST] for entry in found_in(text)]
            steps.append({"kind": "result", "lines": lines, "images": images})
        else:
            kind = "question" if not steps else "told"
            steps.append({"kind": kind, "text": text[:_LONGEST], "images": images})
    return steps


def _said(message: Message, text: str, width: int | None, height: int | None) -> list[Step]:
    """What an assistant's message holds: thought, calls, answer, and any other words."""
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    thoughts = [str(reasoning)] if reasoning else []
    thoughts += [thought.strip() for thought in _THINK.findall(text)]
    steps: list[Step] = [{"kind": "thought", "text": thought[:_LONGEST]} for thought in thoughts if thought]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        arguments = str(function.get("arguments", ""))
        step: Step = {"kind": "call", "tool": str(function.get("name", "")), "text": arguments_of(arguments)}
        box = _box(arguments, width, height)
        steps.append({**step, "box": box} if box else step)
    rest = _CALL.sub("", _ANSWER.sub("", _THINK.sub("", text))).strip()
    if rest:
        steps.append({"kind": "said", "text": rest[:_LONGEST]})
    steps += [{"kind": "answer", "text": evidence(answer.strip())} for answer in _ANSWER.findall(text)]
    return steps


def _content(content: Any) -> tuple[str, list[list[str]]]:
    """The text of a message and the pictures in it, by digest and extension."""
    if isinstance(content, str):
        return content, []
    texts, images = [], []
    for part in content or ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            texts.append(str(part.get("text", "")))
        match = _PICTURE.search(json.dumps(part)) if part.get("type") != "text" else None
        if match:
            images.append([match.group(1), match.group(2)])
    return "\n".join(texts), images


def _box(arguments: str, width: int | None, height: int | None) -> list[float] | None:
    """The box a call names, in shares of the view its pixels are of; None when it names none."""
    if not width or not height:
        return None
    try:
        fields = json.loads(arguments)
        x1, y1, x2, y2 = (float(edge) for edge in fields["bbox_2d"])
    except (ValueError, TypeError, KeyError):
        return None
    left, right = sorted((x1 / width, x2 / width))
    top, bottom = sorted((y1 / height, y2 / height))
    inside = [min(max(edge, 0.0), 1.0) for edge in (left, top, right, bottom)]
    return [round(share, 4) for share in (inside[0], inside[1], inside[2] - inside[0], inside[3] - inside[1])]
