"""Training curves of every model."""

import json
from typing import Any

from tasks.review.site.blocks import Block, commands, heading, lines, table
from tasks.review.site.page import Source, page
from tasks.review.site.words import moment

MOST_STEPS = 7  # of the validations, evenly spread; the last one is shown besides
FIRST = ("loss", "reward", "tool_error_rate")  # drawn before the others
TITLES = {"tool_error_rate": "tool errors: share of calls that were invalid, unparseable or could not be executed"}
TOGETHER = {  # how names begin that share a plot
    "behaviour/": "ways to be paid without the work: share of a step's rollouts that show one",
    "reward/": "what the reward consists of: mean of a step's rollouts",
    "tool_near tool_misses": "recorded tools: share of calls answered by the nearest question, or by none",
}
PASS = "pass@"


@page(
    "training",
    "Training",
    "Agents",
    ("models",),
    about="What was trained, from what, and how it went.",
    order=20,
    shown=lambda source: source.version("models") >= 0,
)
def training_page(source: Source) -> list[Block]:
    """One section for each model, newest first."""
    blocks: list[Block] = []
    for row in source.read("models").sort("written_at", descending=True).to_dicts():
        blocks += [
            heading(f"{row['training_stage']} · {row['model_id']}", f"trained {moment(row['written_at'])}"),
            table(
                ["base", "recipe", "parent", "snapshot", "samples", "steps", "checkpoint"],
                [
                    [
                        row[name]
                        for name in ("base", "recipe", "parent_id", "snapshot_id", "samples", "steps", "checkpoint")
                    ]
                ],
                ["text", "text", "code", "code", "number", "number", "code"],
            ),
            *_validations(json.loads(row["metrics_json"] or "{}")),
            *_passes(json.loads(row["metrics_json"] or "{}")),
            *_curves(json.loads(row["metrics_json"] or "{}")),
            commands(source.command(f"trace {row['model_id']}")),
        ]
    return blocks


def _curves(metrics: dict[str, Any]) -> list[Block]:
    """Plots of the series of numbers; those that are read against each other share one."""
    names = [name for name, values in metrics.items() if _is_series(values)]
    ordered = sorted(names, key=lambda name: (name not in FIRST, _together(name) is None, name))
    plots: dict[str, dict[str, list[float | None]]] = {}
    for name in ordered:
        title = _together(name) or TITLES.get(name, name.replace("_", " "))
        plots.setdefault(title, {})[name.rpartition("/")[2].replace("_", " ")] = metrics[name]
    return [lines(title, range(1, len(next(iter(plot.values()))) + 1), plot, "step") for title, plot in plots.items()]


def _together(name: str) -> str | None:
    """The title of the plot that a series shares with others."""
    shared = (title for start, title in TOGETHER.items() if name.startswith(start) or name in start.split())
    return next(shared, None)


def _passes(metrics: dict[str, Any]) -> list[Block]:
    """pass@K over the steps, one plot a distance: how often the best of K answers is near enough."""
    passes = [
        validation
        for validation in metrics.get("validations") or []
        if any(name.startswith(PASS) for name in validation)
    ]
    names = sorted({name for validation in passes for name in validation if name.startswith(PASS)}, key=_order)
    by_distance: dict[str, dict[str, list[float | None]]] = {}
    for name in names:
        curve, _, distance = name.partition("/acc@")
        values = [validation.get(name) for validation in passes]
        by_distance.setdefault(distance, {})[curve] = values
    steps = [validation["step"] for validation in passes]
    plots = [
        lines(f"pass@K within {distance}", steps, curves, "step", "share of held-out pictures")
        for distance, curves in by_distance.items()
        if len(passes) > 1
    ]
    about = "share of held-out pictures of which one of K sampled answers is near enough, as training goes on"
    return [heading("pass@K by step", about), *plots] if plots else []


def _validations(metrics: dict[str, Any]) -> list[Block]:
    """The held-out pictures step by step, and what was found odd on the way."""
    validations, warnings = metrics.get("validations") or [], metrics.get("warnings") or []
    blocks: list[Block] = []
    if validations:
        # Measures below each other: there are more of them than a page is wide.
        names = sorted((name for name in validations[-1] if name != "step"), key=_order)
        shown = validations[:: -(-len(validations) // MOST_STEPS)]
        shown = shown if shown[-1] is validations[-1] else [*shown, validations[-1]]
        rows = [
            [name.replace("_", " "), *(round(validation.get(name, 0.0), 4) for validation in shown)] for name in names
        ]
        columns = ["on held-out pictures", *(f"step {validation['step']:,}" for validation in shown)]
        blocks.append(table(columns, rows, ["text", *["number"] * len(shown)]))  # type: ignore[list-item]
    if warnings:
        blocks.append(
            table(["step", "warning"], [[warning["step"], warning["text"]] for warning in warnings], ["number", "text"])
        )
    return blocks


def _order(name: str) -> tuple[int, float, str]:
    """Loss and reward first, accuracies by their distance last."""
    if "acc@" in name:
        return 2 + name.startswith(PASS), float(name.rpartition("acc@")[2].removesuffix("km")), name
    return int(name not in FIRST), 0.0, name


def _is_series(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) > 1
        and all(value is None or (isinstance(value, int | float) and value == value) for value in values)
    )
