"""The report of the evaluation: every policy in one table, in the order of training, and how they compare."""

from collections.abc import Callable

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.policies import STAGES, TRAINED
from tasks.evaluate.score_report import figure
from tasks.lake import Lake
from tasks.runtime.report import MADE_FROM, Report, markdown_table, report_folder, write_files
from tasks.runtime.runner import digest

VERSION = 1
SHOWN = (
    "acc@1km",
    "acc@25km",
    "acc@200km",
    "acc@750km",
    "acc@2500km",
    "median_km",
    "geoscore_mean",
    "country_accuracy",
)


def report(lake: Lake, settings: EvaluateSettings) -> Report:
    """The newest snapshot's scores as Markdown and CSV."""
    scores = lake.read("scores")
    if scores.is_empty():
        return Report("# Evaluation\n\nNo policy has been scored.\n", {})
    snapshot = scores.sort("written_at")["snapshot_id"][-1]
    mine = scores.filter(pl.col("snapshot_id") == snapshot)
    table = side_by_side(mine, lake.read("models"))
    pairs = lake.read("score_pairs").filter(pl.col("snapshot_id") == snapshot)
    pairs = pairs.sort("policy", "other_policy", "metric").select(
        "policy", "other_policy", "metric", "first", "second", "difference", "low", "high", "p", "n"
    )
    text = [f"# Evaluation on snapshot {snapshot}", markdown_table(table)]
    named = pairs.filter(pl.col("metric").is_in(["acc@25km", "acc@750km", "median_km"]))
    if named.height:
        rounded = named.with_columns(pl.col(pl.Float64).round(4))
        text += ["## Paired comparisons", markdown_table(rounded)]
    make: dict[str, Callable[[], bytes]] = {
        "policies.csv": lambda: table.write_csv().encode(),
        "pairs.csv": lambda: pairs.write_csv().encode(),
    }
    key = digest("evaluation report", VERSION, snapshot, table.rows(), pairs.rows())
    files = write_files(report_folder(lake, "evaluate"), key, make)
    lake.blobs.push("reports/evaluate", last=MADE_FROM)
    return Report("\n\n".join(text) + "\n", files)


def side_by_side(scores: pl.DataFrame, models: pl.DataFrame) -> pl.DataFrame:
    """One row a policy: base models, then SFT, cold start and GRPO."""
    stage_of = dict(models.select("model_id", "training_stage").iter_rows())
    newest = scores.sort("written_at").group_by("policy", maintain_order=True).agg(pl.col("evaluation_id").last())
    rows = []
    for policy, evaluation in newest.iter_rows():
        known = {row["metric"]: row for row in scores.filter(pl.col("evaluation_id") == evaluation).to_dicts()}
        stage = stage_of.get(policy.removeprefix(TRAINED), "") if policy.startswith(TRAINED) else ""
        cells = {name: _cell(name, known.get(name)) for name in SHOWN}
        rows.append({"policy": policy, "training_stage": stage or "base", "n": known["acc@1km"]["n"], **cells})
    order = {name: number for number, name in enumerate(("base", *STAGES))}
    rows.sort(key=lambda row: (order.get(row["training_stage"], len(order)), row["policy"]))
    return pl.DataFrame(rows)


def _cell(name: str, row: dict[str, float] | None) -> str:
    if row is None or row["value"] is None:
        return "-"
    bounds = [figure(name, row[side]) if row[side] is not None else "-" for side in ("low", "high")]
    return f"{figure(name, row['value'])} ({bounds[0]} .. {bounds[1]})"
