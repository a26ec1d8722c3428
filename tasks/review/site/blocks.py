"""What a page is made of: blocks of plain data, which the browser draws (assets/blocks.js).

A page needs no JavaScript of its own. Values are text and numbers; the browser puts them into the page as text, never
as markup, so what comes from the web or from a model cannot become a part of the page.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Block = dict[str, Any]
Tone = Literal["plain", "good", "bad", "muted", "pending"]
# number and percent stand to the right; code is set in a fixed width; picture is an image_id, shown small and linked;
# bar is a share from 0 to 1; trajectory is a trajectory_id, linked; answer is the key of a benchmark answer, linked
ColumnKind = Literal["text", "number", "percent", "code", "picture", "bar", "trajectory", "answer"]


def heading(text: str, about: str = "") -> Block:
    """A section's title, with a sentence on what it shows."""
    return {"block": "heading", "text": text, "about": about}


def words(text: str, tone: Tone = "plain") -> Block:
    """A paragraph."""
    return {"block": "words", "text": text, "tone": tone}


def figure(value: str | int | float, label: str, tone: Tone = "plain", link: str = "") -> Block:
    """One number with its name; `link` is a place in the site such as `pictures?reason=landmark`."""
    return {"value": number(value), "label": label, "tone": tone, "link": link}


def figures(*items: Block) -> Block:
    """A row of numbers, each made by `figure`."""
    return {"block": "figures", "items": list(items)}


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    kinds: Sequence[ColumnKind] = (),
    links: Sequence[str] = (),
    empty: str = "Nothing.",
) -> Block:
    """A table; `links` holds a place in the site for each row, `empty` what is said when there is no row."""
    return {
        "block": "table",
        "columns": list(columns),
        "kinds": list(kinds) or ["text"] * len(columns),
        "rows": [list(row) for row in rows],
        "links": list(links),
        "empty": empty,
    }


def shares(title: str, parts: Sequence[tuple[str, str, Sequence[tuple[str, int]]]]) -> Block:
    """Rows of stacked bars: label, place in the site, and (class, count) of each part.

    A class is one of kept, rejected, failed, train, validation, benchmark.
    """
    rows = [{"label": label, "link": link, "parts": [list(part) for part in shares]} for label, link, shares in parts]
    return {"block": "shares", "title": title, "rows": rows}


def bars(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str = "") -> Block:
    """Upright bars for each label, one colour for each series."""
    return {"block": "bars", "title": title, "labels": list(labels), "series": _lists(series), "unit": unit}


def lines(
    title: str, x: Sequence[float], series: Mapping[str, Sequence[float | None]], x_label: str = "", y_label: str = ""
) -> Block:
    """Curves over one axis. A gap is None."""
    block = {"block": "lines", "title": title, "x": list(x), "series": _lists(series)}
    return {**block, "x_label": x_label, "y_label": y_label}


def pictures(title: str, image_ids: Sequence[str], captions: Sequence[str] = ()) -> Block:
    """Small pictures that lead to their own pages."""
    return {"block": "pictures", "title": title, "ids": list(image_ids), "captions": list(captions)}


def commands(*lines_: str) -> Block:
    """Lines for a shell, each with a button that copies it."""
    return {"block": "commands", "lines": list(lines_)}


def points(title: str, rows: Sequence[tuple[float, float, str, str, str]]) -> Block:
    """A zoomable world map of points: lat, lon, group, label, place in the site. Crowded points are gathered."""
    return {"block": "points", "title": title, "rows": [list(row) for row in rows]}


def number(value: Any) -> str:
    """A number as people read it: thousands apart, three digits behind the point at most."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return str(value)


def _lists(series: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in series.items()}
