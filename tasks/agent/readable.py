"""Calls of tools and what they returned, as a person reads them: a title, an address or words, a point."""

import json
import re
from dataclasses import dataclass
from typing import Any

from schemas.messages import json_object

MOST_ENTRIES = 8
_TITLES = ("title", "display_name", "name")
_ADDRESS = ("address", "district")
_TAGS = re.compile(r"</?answer>")


@dataclass(frozen=True)
class Entry:
    """One thing that a tool found, or what it said. All of it was written by others."""

    title: str
    detail: str = ""  # an address, or words of a page
    point: str = ""  # latitude and longitude
    link: str = ""

    def line(self) -> str:
        """All of it in one line."""
        head = " · ".join(part for part in (self.title, self.point, self.link) if part)
        return f"{head}: {self.detail}" if self.detail else head


def found_in(text: str) -> list[Entry]:
    """What a tool's answer holds; other text than JSON is shown as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [Entry(text)] if text.strip() else []
    if isinstance(value, dict) and set(value) == {"error"}:
        return [Entry(str(value["error"]))]
    if isinstance(value, dict) and "bbox_2d" in value:
        return [Entry(f"the region {value['bbox_2d']}, enlarged")]
    if isinstance(value, dict) and "center" in value:
        return [Entry(f"{value.get('image', 'a map')}, around {value['center']}, zoom {value.get('zoom', '?')}")]
    rows = _rows(value)
    entries = [_entry(row) for row in rows[:MOST_ENTRIES]] or [Entry("nothing found")]
    return [*entries, *([Entry(f"and {len(rows) - MOST_ENTRIES} more")] if len(rows) > MOST_ENTRIES else [])]


def arguments_of(text: str) -> str:
    """A call's arguments: their values, with names where there are several."""
    value = json_object(text)
    if value is None:
        return text
    if len(value) == 1:
        return _plain(next(iter(value.values())))
    return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())


def answer_of(text: str) -> str:
    """An answer without its tags; the values of one that is an object."""
    answer = _TAGS.sub("", text).strip()
    value = json_object(answer)
    return answer if value is None else "\n".join(f"{name}: {_plain(part)}" for name, part in value.items())


def _rows(value: Any) -> list[Any]:
    """The things found: the one list or the objects that an answer holds, else the answer as a whole."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    lists = [inner for inner in value.values() if isinstance(inner, list)]
    if len(lists) == 1:
        return lists[0]
    inner = list(value.values())
    return inner if all(isinstance(row, dict) for row in inner) else [value]


def _entry(row: Any) -> Entry:
    if not isinstance(row, dict):
        return Entry(_plain(row))
    title = next((str(row[name]) for name in _TITLES if row.get(name)), "")
    if not title:
        return Entry(", ".join(f"{name}: {_plain(part)}" for name, part in row.items() if part not in (None, "", [])))
    address = ", ".join(str(row[name]) for name in _ADDRESS if row.get(name))
    words = [str(row["kind"])] if row.get("kind") else []
    words += [address] if address else []
    words += [str(row["content"])] if row.get("content") else []
    point = ""
    if all(isinstance(row.get(side), int | float) for side in ("lat", "lon")):
        point = f"{row['lat']:.5f}, {row['lon']:.5f}"
    return Entry(title, " · ".join(words), point, str(row.get("url") or ""))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
