"""Kept trajectories as files that trainers read by themselves, and the tagged form and back.

trl: Parquet with `messages` (system, user and assistant turns, the tools in the system message, `image` parts in
order) and `images`. tagged: one JSON line a trajectory, from which `read_tagged` makes the stored messages again.
Licence and attribution go along with every row. verl trains by reinforcement, on questions: `geofix verl` writes them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import InputError
from schemas.messages import Message, image_reference, image_references, parts_of
from tasks.agent.render import tools_block, training_messages
from tasks.agent.tagged import parse_tagged
from tasks.lake import Lake

Row = dict[str, Any]

_IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
_PARTS = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))
_CREDIT = {"image_id": pa.string(), "licence": pa.string(), "attribution": pa.string()}
_TRL = pa.schema(
    {
        "messages": pa.list_(pa.struct([("role", pa.string()), ("content", _PARTS)])),
        "images": _IMAGES,
        "trajectory_id": pa.string(),
        **_CREDIT,
    }
)


def export(lake: Lake, recipe: str, form: str, out: Path) -> int:
    """Write the recipe's kept trajectories; returns how many. InputError if there are none, or for another form."""
    if form not in FORMS:
        verl = "; `geofix verl` writes what verl trains from" if form == "verl" else ""
        raise InputError(f"--as: there is no form '{form}'; there are {', '.join(FORMS)}{verl}")
    rows = list(_kept(lake, recipe))
    if not rows:
        raise InputError(f"the lake holds no kept trajectories of the recipe '{recipe}'")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    FORMS[form](rows, lake, part)
    part.replace(out)
    return len(rows)


def read_tagged(row: Row) -> list[Message]:
    """The stored messages of a line of the tagged form, call ids numbered in order."""
    tagged = [dict(turn) for turn in row["messages"]]
    if row["tools"]:
        tagged[0]["content"] = tagged[0]["content"].removesuffix("\n\n" + tools_block(row["tools"]))
    return parse_tagged(tagged)


def _kept(lake: Lake, recipe: str) -> Iterator[Row]:
    wanted = (pl.col("verdict") == "kept") & (pl.col("recipe") == recipe)
    credits = lake.read("images", columns=["image_id", "licence", "attribution"])
    live = lake.read("labels", columns=["image_id"])
    rows = lake.read("trajectories").filter(wanted).select("trajectory_id", "image_id", "messages_json", "tools_json")
    # A picture that was withdrawn is in neither table any more, and is not exported.
    joined = rows.join(credits, on="image_id", how="inner").join(live, on="image_id", how="inner")
    for row in joined.sort("trajectory_id").iter_rows(named=True):
        stored, tools = json.loads(row.pop("messages_json")), json.loads(row.pop("tools_json"))
        yield {**row, "recipe": recipe, "stored": stored, "tools": tools}


def _credit(row: Row) -> Row:
    return {name: row[name] for name in _CREDIT}


def _write_trl(rows: Sequence[Row], lake: Lake, path: Path) -> None:
    with pq.ParquetWriter(path, _TRL) as writer:
        for row in rows:
            turns = training_messages(row["stored"], row["tools"])
            made = {
                "messages": [{"role": turn["role"], "content": _parts(turn["content"])} for turn in turns],
                "images": _images(lake, turns),
                "trajectory_id": row["trajectory_id"],
                **_credit(row),
            }
            writer.write_table(pa.Table.from_pylist([made], _TRL))


def _write_tagged(rows: Sequence[Row], lake: Lake, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            turns = training_messages(row["stored"], row["tools"])
            made = {"trajectory_id": row["trajectory_id"], "messages": turns, "tools": row["tools"], **_credit(row)}
            file.write(json.dumps(made, ensure_ascii=False) + "\n")


def _parts(content: Any) -> list[dict[str, str]]:
    """Parts with the same keys each: Arrow would fill a missing one with null, which TRL takes for a picture."""
    return [{"type": "image", "text": ""} if image_reference(part) else part for part in parts_of(content)]


def _images(lake: Lake, turns: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"bytes": lake.images.read(*reference), "path": None} for reference in image_references(list(turns))]


FORMS: dict[str, Callable[[Sequence[Row], Lake, Path], None]] = {
    "trl": _write_trl,
    "tagged": _write_tagged,
}
