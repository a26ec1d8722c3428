"""A page that shows what an agent did with pictures: boxes, regions, thoughts, calls, results, answer and map link.

One file without scripts. Everything a model or a web page wrote is escaped.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.messages import Message, image_reference, json_object, parts_of, texts_of
from tasks.agent.environment import Trajectory
from tasks.agent.picture import Picture
from tasks.agent.readable import Entry, answer_of, arguments_of, found_in
from tasks.agent.tagged import split_thought
from tasks.imaging.images import to_data_uri
from tasks.reward.answer import ParsedAnswer, ParseFailure

_STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1b1f24;background:#fff}
h2{border-top:1px solid #d0d7de;padding-top:1.5rem}.shown{position:relative}.shown img{width:100%;display:block}
svg{position:absolute;inset:0;width:100%;height:100%}rect{fill:none;stroke:#e5484d;stroke-width:3}
.thought{white-space:pre-wrap;color:#444;border-left:3px solid #d0d7de;padding-left:1rem;margin:.8rem 0}
.call{color:#0550ae;margin:.5rem 0;overflow-wrap:anywhere}.call b{font-family:ui-monospace,monospace}
.result{font-size:14px;background:#f6f8fa;padding:.2rem .8rem;max-height:22rem;overflow:auto;overflow-wrap:anywhere}
.result p{margin:.5rem 0}.result b{font-weight:600}.result small{color:#57606a}
.result img{max-width:100%;display:block;margin:.5rem 0}
.answer{white-space:pre-wrap;border:1px solid #2da44e;border-radius:6px;padding:.8rem;margin:.8rem 0}"""


@dataclass(frozen=True)
class Located:
    """One picture, what was done with it, and what was answered."""

    name: str
    model: str
    recipe: str
    picture: Picture
    trajectory: Trajectory
    pictures: dict[str, bytes]  # by digest, as the messages name them
    answer: ParsedAnswer | ParseFailure
    radius: str = ""  # "within 12.3 km with 90 %", or why no radius is known
    radius_km: float | None = None
    abstains: str | None = None  # why the answer is not told

    @property
    def answered(self) -> bool:
        return (
            self.abstains is None
            and isinstance(self.answer, ParsedAnswer)
            and bool(self.answer.has_point or self.answer.address)
        )

    @property
    def problem(self) -> str:
        """Why there is no place."""
        if self.abstains is not None:
            return f"abstains: {self.abstains}"
        if self.trajectory.end_reason != "answered":
            return self.trajectory.end_reason
        return self.answer.reason if isinstance(self.answer, ParseFailure) else "no_coordinates"

    @property
    def where(self) -> str:
        address = self.answer.address
        return ", ".join(part for part in (address.city, address.region, address.country) if part)

    @property
    def map_link(self) -> str:
        """An address on OpenStreetMap; empty without a point."""
        if not self.answered or not isinstance(self.answer, ParsedAnswer):
            return ""
        if self.answer.lat is None or self.answer.lon is None:
            return ""
        lat, lon = f"{self.answer.lat:.5f}", f"{self.answer.lon:.5f}"
        return f"https://www.openstreetmap.org/?mlat={lat}&mlon={lon}#map=14/{lat}/{lon}"

    def as_row(self) -> dict[str, Any]:
        """The result for machines."""
        point = self.answer if isinstance(self.answer, ParsedAnswer) and self.abstains is None else None
        usage = self.trajectory.usage
        return {
            "picture": self.name,
            "model": self.model,
            "recipe": self.recipe,
            "lat": point.lat if point else None,
            "lon": point.lon if point else None,
            "country": None if self.abstains else self.answer.address.country,
            "city": None if self.abstains else self.answer.address.city,
            "radius_km": self.radius_km,
            "radius": self.radius or None,
            "abstains": self.abstains,
            "map": self.map_link or None,
            "end_reason": self.trajectory.end_reason,
            "problem": None if self.answered else self.problem,
            "tool_calls": [call.as_row() for call in self.trajectory.calls],
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.cost_usd,
        }


def page_html(located: Sequence[Located]) -> str:
    """The page with these trajectories, complete in one file."""
    body = "".join(_section(result) for result in located)
    head = f'<meta charset="utf-8"><title>geofix locate</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _section(result: Located) -> str:
    boxes = "".join(_rectangle(box) for box in _boxes(result.trajectory.messages))
    size = f"0 0 {result.picture.width} {result.picture.height}"
    view = to_data_uri(result.picture.view)
    shown = f'<div class="shown"><img alt="the picture" src="{view}"><svg viewBox="{size}">{boxes}</svg></div>'
    body = "".join(_message(message, result.pictures) for message in result.trajectory.messages[2:])
    link = html.escape(result.map_link, quote=True)
    end = f'<p><b>{_safe(result.where)}</b> <a href="{link}">map</a></p>' if link else f"<p>{_safe(result.problem)}</p>"
    end += f"<p>{_safe(result.radius)}</p>" if result.radius else ""
    return f"<h2>{_safe(result.name)}</h2><p>{_safe(result.model)}, {_safe(result.recipe)}</p>{shown}{body}{end}"


def _message(message: Message, pictures: dict[str, bytes]) -> str:
    content = message["content"]
    if message["role"] == "assistant":
        thought, answer = split_thought(content)
        parts = [f'<div class="thought">{_safe(thought)}</div>' if thought else ""]
        for call in message.get("tool_calls", []):
            function = call["function"]
            arguments = arguments_of(function["arguments"])
            parts.append(f'<div class="call"><b>{_safe(function["name"])}</b> {_safe(arguments)}</div>')
        parts.append(f'<div class="answer">{_safe(answer_of(answer))}</div>' if answer else "")
        return "".join(parts)
    shown = "".join(
        f'<img alt="what the tool showed" src="{to_data_uri(pictures[reference[0]])}">'
        for part in parts_of(content)
        if (reference := image_reference(part)) is not None
    )
    entries = "".join(_found(entry) for entry in found_in(" ".join(texts_of(message))))
    return f'<div class="result">{entries}{shown}</div>'


def _found(entry: Entry) -> str:
    about = " · ".join(part for part in (entry.point, entry.link) if part)
    small = f"<small>{_safe(about)}</small>" if about else ""
    return f"<p><b>{_safe(entry.title)}</b> {small}{f'<br>{_safe(entry.detail)}' if entry.detail else ''}</p>"


def _boxes(messages: Sequence[Message]) -> list[list[float]]:
    boxes = []
    for message in messages:
        for call in message.get("tool_calls") or []:
            box = (json_object(call["function"]["arguments"]) or {}).get("bbox_2d")
            if isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box):
                boxes.append(box)
    return boxes


def _rectangle(box: Sequence[float]) -> str:
    x1, y1, x2, y2 = (float(side) for side in box)
    return f'<rect x="{x1:g}" y="{y1:g}" width="{max(0.0, x2 - x1):g}" height="{max(0.0, y2 - y1):g}"/>'


def _safe(text: str) -> str:
    return html.escape(text)
