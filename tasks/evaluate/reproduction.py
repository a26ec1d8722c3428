"""A paper's table with our figures beside the printed ones: where ours are read from, and how it is shown.

A column names what it shows:

    acc@25km                        a metric of `scores`
    city_accuracy kind=panorama     a metric of `score_slices`
    pattern maps_geocode            share of answers that used exactly these tools, in the order of first use
    used search_web,maps_geocode    share of answers that used one of these tools at least
    calls                           tool calls of an answer
    passk 25 learnable              share of pictures in this regime of Pass@K at 25 km
    passes 25 3                     share of pictures of which 3 trials passed at 25 km
    training reward last            a figure of training, over the first or the last tenth of its steps
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import InputError
from schemas.paper_tables import Column, Paper, PaperTable, PictureSet, TableRow
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import TRAINED
from tasks.evaluate.answers import items
from tasks.evaluate.ensembles import expected_predictions
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Lake
from tasks.reward.metrics import Metric, share
from tasks.runtime.report import markdown_table
from tasks.runtime.snapshots import Snapshot
from tasks.runtime.stage import open_inputs

_PLAIN = ("_km", "_mean", "calls")  # endings of metrics that are not shares
_NONE = Metric("", math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Answered:
    """Whose figures a row shows, after its stages have run."""

    lake: Lake
    policy: str  # as `predictions` names it
    settings: EvaluateSettings
    snapshot: Snapshot
    model_id: str | None = None
    answer: str | None = None  # of an evaluation that asks several times

    @cached_property
    def expected(self) -> pl.DataFrame:
        """evaluation_id and image_id of the answers that the row is about."""
        inputs = open_inputs(SCORES, self.lake, self.snapshot)
        read = items if self.answer is None else expected_predictions
        names = [self.policy] if self.answer is None else [self.answer, f"{self.policy} {self.answer}"]
        rows = read(inputs, self.settings).filter(pl.col("policy").is_in(names)).select("evaluation_id", "image_id")
        if rows.is_empty():
            raise InputError(f"no evaluation gives an answer '{names[-1]}' with these settings")
        return rows

    @cached_property
    def predictions(self) -> pl.DataFrame:
        """The answers themselves."""
        return self.lake.read("predictions").join(self.expected, on=["evaluation_id", "image_id"], how="semi")


@dataclass(frozen=True)
class RowResult:
    """A row's figures in the order of sets and columns, and what a reader needs to know of how they came about."""

    cells: tuple[Metric, ...] = ()
    policy: str = ""
    model_id: str | None = None
    not_run: str | None = None
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Without NaN, which JSON does not have."""
        return {**vars(self), "cells": [cell.as_row() for cell in self.cells]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "RowResult":
        known: list[dict[str, Any]] = [
            {name: math.nan if value is None else value for name, value in cell.items()} for cell in stored["cells"]
        ]
        return cls(**{**stored, "cells": tuple(Metric(**cell) for cell in known)})


def measure(column: Column, row: TableRow, part: str | None, answered: Answered) -> Metric:
    """Our figure of one cell; one without a value where the lake has none. `part` is a slice of the pictures."""
    of = column.of.format(**row.of)
    kind, _, rest = of.partition(" ")
    read = _READERS.get(kind)
    metric = read(rest, answered) if read else _score(kind, rest or part, answered)
    value, low, high = (number * column.times for number in (metric.value, metric.low, metric.high))
    return Metric(of, value, low, high, metric.n)


def _score(metric: str, part: str | None, answered: Answered) -> Metric:
    wanted = [
        pl.col("evaluation_id") == answered.expected["evaluation_id"][0],
        pl.col("snapshot_id") == answered.snapshot.snapshot_id,
        pl.col("metric") == metric,
    ]
    if part:
        by, _, name = part.partition("=")
        wanted += [pl.col("slice_by") == by, pl.col("slice") == name]
    rows = answered.lake.read("score_slices" if part else "scores").filter(*wanted)
    if rows.is_empty():
        return _NONE
    value, low, high = (math.nan if number is None else number for number in rows.select("value", "low", "high").row(0))
    return Metric(metric, value, low, high, rows["n"][0])


def _pattern(tools: str, answered: Answered) -> Metric:
    rows = answered.predictions
    return share("pattern", int((rows["tool_pattern"] == tools).sum()), rows.height)


def _used(tools: str, answered: Answered) -> Metric:
    used = answered.predictions["tool_pattern"].fill_null("").str.split(" > ")
    return share("used", sum(bool({*tools.split(",")} & {*names}) for names in used), len(used))


def _calls(_: str, answered: Answered) -> Metric:
    return _mean("calls", answered.predictions["tool_calls"].cast(pl.Float64).drop_nulls().to_numpy())


def _mean(name: str, values: np.ndarray) -> Metric:
    """The mean, with 1.96 standard errors on both sides."""
    if not len(values):
        return _NONE
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else math.nan
    mean = float(values.mean())
    return Metric(name, mean, mean - half, mean + half, len(values))


def _regimes(km: str, answered: Answered) -> pl.DataFrame:
    rows = answered.lake.read("regimes").filter(pl.col("policy") == f"{TRAINED}{answered.model_id}")
    each = rows.select("threshold_km", "passes", "regimes").explode("threshold_km", "passes", "regimes")
    return each.filter(pl.col("threshold_km") == float(km))


def _pass_at_k(spec: str, answered: Answered) -> Metric:
    km, regime = spec.split()
    rows = _regimes(km, answered)
    return share("passk", int((rows["regimes"] == regime).sum()), rows.height)


def _passes(spec: str, answered: Answered) -> Metric:
    km, count = spec.split()
    rows = _regimes(km, answered)
    return share("passes", int((rows["passes"] == int(count)).sum()), rows.height)


def _training(spec: str, answered: Answered) -> Metric:
    name, end = spec.split()
    rows = answered.lake.read("training_steps").filter(
        pl.col("model_id") == answered.model_id, pl.col("kind") == "step"
    )
    figures = [json.loads(text).get(name) for text in rows.sort("number")["figures_json"]]
    if name in ("reward", "loss"):
        figures = rows.sort("number")[name].to_list()
    known = np.array([figure for figure in figures if figure is not None], dtype=np.float64)
    tenth = max(1, len(known) // 10)
    return _mean(name, known[:tenth] if end == "first" else known[-tenth:])


_READERS: dict[str, Callable[[str, Answered], Metric]] = {
    "pattern": _pattern,
    "used": _used,
    "calls": _calls,
    "passk": _pass_at_k,
    "passes": _passes,
    "training": _training,
}


def is_share(column: Column) -> bool:
    """Whether a column is in per cent, as papers print shares; other figures are printed as they are."""
    first = column.of.split()[0]
    return first != "training" and not first.endswith(_PLAIN)


def cell_text(metric: Metric, column: Column) -> str:
    """`12.5 [8.1, 18.0]`: value and 95 % interval; a dash where there is none."""
    if not math.isfinite(metric.value):
        return "–"
    times = 100 if is_share(column) else 1
    value, low, high = (number * times for number in (metric.value, metric.low, metric.high))
    interval = "" if math.isnan(low) and math.isnan(high) else f" [{_number(low, 0)}, {_number(high, 0)}]"
    return _number(value, 1) + interval


def _number(value: float, decimals: int) -> str:
    if not math.isfinite(value):
        return "–"
    decimals = 0 if abs(value) >= 1000 else decimals if abs(value) >= 10 else decimals + 1
    return f"{value:,.{decimals}f}"


@dataclass(frozen=True)
class Reproduction:
    """A table as far as it was run."""

    name: str  # of the recipe
    paper: Paper
    table: PaperTable
    sets: tuple[PictureSet | None, ...]  # the pictures that stand for the table's sets; None: the lake has none
    rows: Mapping[str, RowResult]
    conditions: tuple[str, ...]  # what differs from the paper, in words
    about: Mapping[str, Any] = field(default_factory=dict)  # lake, snapshot, split, base, settings

    @property
    def title(self) -> str:
        return f"{self.table.label} of {self.name}: {self.table.title}"

    def frames(self) -> list[tuple[PictureSet, pl.DataFrame]]:
        """For each set of pictures a frame with two lines a row: the paper's figures, and ours."""
        width = len(self.table.columns)
        return [
            (picture_set, self._frame(slice(at * width, (at + 1) * width)))
            for at, picture_set in enumerate(self.table.sets)
        ]

    def _frame(self, mine: slice) -> pl.DataFrame:
        columns = self.table.columns
        lines: list[dict[str, str]] = []
        for row in self.table.rows:
            printed = row.printed[mine] or (None,) * len(columns)
            paper = ["–" if number is None else f"{number:,g}" for number in printed]
            lines.append({"row": row.name, "whose": "paper", **dict(zip(columns, paper, strict=True))})
            result = self.rows.get(row.name)
            if result is None or result.not_run:
                continue
            cells = [cell_text(*pair) for pair in zip(result.cells[mine], columns.values(), strict=True)]
            lines.append({"row": "", "whose": "ours", **dict(zip(columns, cells, strict=True))})
        return pl.DataFrame(lines)

    def pictures(self, at: int) -> int:
        """How many pictures ours of a set are over."""
        width = len(self.table.columns)
        counts = [cell.n for row in self.rows.values() for cell in row.cells[at * width : (at + 1) * width]]
        return max(counts, default=0)

    def sentences(self) -> list[str]:
        """The conditions that differ, what was not run and why, and how to read the intervals."""
        missing = [f"{name}: {row.not_run}" for name, row in self.rows.items() if row.not_run]
        last = (
            "Ours in brackets are 95 % intervals. Where those of two rows overlap, the order of the rows says nothing."
        )
        if len([row for row in self.rows.values() if row.cells]) > 1 and not self.has_differences():
            last += " All of ours overlap: at this size the table neither supports nor contradicts the paper."
        return [*self.conditions, *self.table.notes, *(f"Not run: {row}." for row in missing), last]

    def has_differences(self) -> bool:
        """Whether the intervals of two of our rows lie apart in one column."""
        columns = zip(*(row.cells for row in self.rows.values() if row.cells), strict=True)
        known = ([cell for cell in cells if math.isfinite(cell.low + cell.high)] for cells in columns)
        return any(max(metric.low for metric in some) > min(metric.high for metric in some) for some in known if some)

    def markdown(self) -> str:
        """The page that is stored."""
        text = [f"# {self.title}", self.paper.title]
        for at, (pictures, frame) in enumerate(self.frames()):
            text += [f"## {self._heading(at, pictures)}", markdown_table(frame)]
        text += ["## What differs from the paper", "\n".join(f"- {sentence}" for sentence in self.sentences())]
        return "\n\n".join(text) + "\n"

    def plain(self) -> str:
        """The same for a terminal."""
        lines = [self.title, self.paper.title]
        for at, (pictures, frame) in enumerate(self.frames()):
            lines += ["", self._heading(at, pictures), *aligned([frame.columns, *map(list, frame.rows())])]
        return "\n".join(
            [*lines, "", "What differs from the paper:", *(f"  - {sentence}" for sentence in self.sentences())]
        )

    def _heading(self, at: int, pictures: PictureSet) -> str:
        ours, count = self.sets[at], self.pictures(at)
        if ours is None or not count or self.table.measures == "training":
            return pictures.name
        split = self.about.get("split", "benchmark")
        of = "" if ours.source or not pictures.source else f" of the lake's {split} split"
        return f"{pictures.name} (ours: {count:,} picture{'s' * (count > 1)}{of})"

    def as_json(self) -> dict[str, Any]:
        """Everything, for a machine."""
        return {
            "recipe": self.name,
            "table": self.table.label,
            "title": self.table.title,
            "paper": self.paper.title,
            "sets": [picture_set.model_dump() for picture_set in self.table.sets],
            "ours_on": [picture_set and picture_set.model_dump() for picture_set in self.sets],
            "columns": {name: column.model_dump() for name, column in self.table.columns.items()},
            "rows": {
                row.name: {"printed": row.printed, **(self.rows[row.name].as_json() if row.name in self.rows else {})}
                for row in self.table.rows
            },
            "differs": self.sentences(),
            **self.about,
        }


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, words to the left and figures to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
