"""The report of the evaluation: every policy beside the others."""

from collections.abc import Callable

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import PHASES, TRAINED, name_by_tools
from tasks.evaluate.coverage import benchmark_coverage
from tasks.evaluate.file_report import format_metric
from tasks.evaluate.radius import radius_words
from tasks.lake import Lake
from tasks.runtime.report import MADE_FROM, markdown_table, report_folder, write_files
from tasks.runtime.report import Report as StageReport
from tasks.runtime.runner import digest

VERSION = 3
SHOWN = (
    "acc@1km",
    "acc@25km",
    "acc@50km",
    "acc@200km",
    "acc@750km",
    "acc@2500km",
    "median_km",
    "geoscore_mean",
    "country_accuracy",
    "radius_coverage",
    "radius_median_km",
    "abstention_rate",
    "grounded_rate",
    "signs_seen_rate",
    "tool_supported_rate",
    "tokens_mean",
)


def report(lake: Lake, settings: EvaluateSettings) -> StageReport:
    """The newest snapshot's scores as Markdown and CSV."""
    scores = lake.read("scores")
    if scores.is_empty():
        return StageReport("# Evaluation\n\nNo policy has been scored.\n", {})
    snapshot = scores.sort("written_at")["snapshot_id"][-1]
    tools = lake.read("predictions", columns=["evaluation_id", "tools"])
    mine = name_by_tools(scores.filter(pl.col("snapshot_id") == snapshot), tools)
    table = side_by_side(mine, lake.read("models"))
    names = dict(mine.select("evaluation_id", "policy").iter_rows())
    pairs = lake.read("score_pairs").filter(pl.col("snapshot_id") == snapshot)
    pairs = pairs.with_columns(
        pl.col("evaluation_id").replace_strict(names, default=pl.col("policy")).alias("policy"),
        pl.col("other_id").replace_strict(names, default=pl.col("other_policy")).alias("other_policy"),
    )
    pairs = pairs.sort("policy", "other_policy", "metric").select(
        "policy", "other_policy", "metric", "first", "second", "difference", "low", "high", "p", "n"
    )
    covered = [str(line) for line in benchmark_coverage(lake)]
    text = [f"# Evaluation on snapshot {snapshot}", markdown_table(table), *(f"- {line}" for line in covered)]
    losses = cue_table(lake.read("cue_losses").filter(pl.col("snapshot_id") == snapshot))
    if losses.height:
        text += ["## Cue attribution: accuracy lost without a cue", markdown_table(losses)]
    calibrated = lake.read("calibrations").filter(pl.col("snapshot_id") == snapshot)
    radii = radius_table(calibrated.join(mine, on="evaluation_id", how="semi"))
    if radii.height:
        text += ["## Radii, calibrated on validation answers", markdown_table(radii)]
    named = pairs.filter(pl.col("metric").is_in(["acc@25km", "acc@750km", "median_km"]))
    if named.height:
        rounded = named.with_columns(pl.col(pl.Float64).round(4))
        text += ["## Paired comparisons", markdown_table(rounded)]
    make: dict[str, Callable[[], bytes]] = {
        "policies.csv": lambda: table.write_csv().encode(),
        "pairs.csv": lambda: pairs.write_csv().encode(),
        "radii.csv": lambda: radii.write_csv().encode(),
        "cues.csv": lambda: losses.write_csv().encode(),
    }
    key = digest(
        "evaluation report", VERSION, snapshot, table.rows(), covered, pairs.rows(), radii.rows(), losses.rows()
    )
    files = write_files(report_folder(lake, "evaluate"), key, make)
    lake.blobs.push("reports/evaluate", last=MADE_FROM)
    return StageReport("\n\n".join(text) + "\n", files)


def cue_table(losses: pl.DataFrame) -> pl.DataFrame:
    """One row a policy, cue, set of pictures and metric, the cue that costs most first."""
    columns = ("policy", "cue", "pictures", "metric", "whole", "without", "lost", "low", "high", "p", "n")
    shown = losses.filter(pl.col("metric").is_in(["acc@25km", "acc@200km", "acc@750km"]))
    order = shown.sort("policy", "metric", "pictures", "lost", "cue", descending=[False, False, True, True, False])
    return order.select(columns).with_columns(pl.col(pl.Float64).round(4))


def radius_table(calibrations: pl.DataFrame) -> pl.DataFrame:
    """One row a policy and group of answers: how many answers it was calibrated on, and what they give."""
    rows = calibrations.sort("policy", "radius_group").iter_rows(named=True)
    columns = ("policy", "radius_group", "answers")
    return pl.DataFrame(
        [{**{name: row[name] for name in columns}, "radius": radius_words(row)} for row in rows],
        schema={"policy": pl.String, "radius_group": pl.String, "answers": pl.Int64, "radius": pl.String},
    )


def side_by_side(scores: pl.DataFrame, models: pl.DataFrame) -> pl.DataFrame:
    """One row a split and policy: the benchmark first; base models, then SFT, cold start and GRPO."""
    phase_of = dict(models.select("model_id", "training_stage").iter_rows())
    newest = newest_evaluations(scores)
    rows = []
    for split, policy, evaluation in newest.select("split", "policy", "evaluation_id").iter_rows():
        known = {row["metric"]: row for row in scores.filter(pl.col("evaluation_id") == evaluation).to_dicts()}
        model = policy.removeprefix(TRAINED).partition(" ")[0]
        phase = phase_of.get(model, "") if policy.startswith(TRAINED) else ""
        cells = {name: _cell(name, known.get(name)) for name in SHOWN}
        head = {"split": split or "-", "policy": policy, "training_stage": phase or "base"}
        rows.append({**head, "n": known["acc@1km"]["n"], **cells})
    order = {name: number for number, name in enumerate(("base", *PHASES))}
    rows.sort(key=lambda row: (row["split"], order.get(row["training_stage"], len(order)), row["policy"]))
    return pl.DataFrame(rows)


def newest_evaluations(scores: pl.DataFrame) -> pl.DataFrame:
    """split, policy, evaluation_id and snapshot_id of each policy's newest evaluation on each split."""
    last = pl.col("evaluation_id", "snapshot_id").last()
    return scores.sort("written_at").group_by("split", "policy", maintain_order=True).agg(last)


def _cell(name: str, row: dict[str, float] | None) -> str:
    if row is None or row["value"] is None:
        return "-"
    bounds = [format_metric(name, row[side]) if row[side] is not None else "-" for side in ("low", "high")]
    return f"{format_metric(name, row['value'])} ({bounds[0]} .. {bounds[1]})"
