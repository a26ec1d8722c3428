"""How far from its answer a place is: conformal radii, whether they hold, and which answers are not given."""

import math
from typing import Any

import polars as pl

from tasks.review.site.blocks import Block, bars, commands, heading, points, table, words
from tasks.review.site.page import Source, page
from tasks.review.site.words import distance, share

MOST = 400
GROUPS = {True: "within", False: "outside", None: "no radius"}
WHY = {
    "no_point": "names no point",
    "home": "shows a private home",
    "too_large": "radius larger than evaluate.radius.max_km",
}


@page(
    "radius",
    "Radius",
    "Agents",
    ("scores", "score_slices", "calibrations", "radii", "predictions", "labels", "images"),
    about="Within how many kilometres of an answer the place is, and whether that held on the benchmark.",
    order=40,
    shown=lambda source: source.version("scores") >= 0,
)
def radius_page(source: Source) -> list[Block]:
    """For each policy what its radii promise, what they held in all and by slice, and a map of the benchmark."""
    mine = pl.col("snapshot_id") == source.snapshot_id
    calibrations, radii = (source.read(name).filter(mine) for name in ("calibrations", "radii"))
    if calibrations.is_empty():
        asks = "evaluate --set evaluate.radius.calibrate=true"
        sentence = "No policy has answered validation pictures of this snapshot, which radii are calibrated on."
        return [words(sentence, "muted"), commands(source.command(asks))]
    blocks: list[Block] = [
        words(
            "A radius is calibrated on answers to validation pictures, group by group: of a group's answers to such "
            "pictures the promised share lies within it, whatever the model. Groups with too few answers are taken "
            "together. Coverage is measured on the benchmark, with exact 95 % intervals.",
            "muted",
        )
    ]
    for (policy,), groups in calibrations.sort("policy", "radius_group").group_by("policy", maintain_order=True):
        newest = groups.sort("written_at")["evaluation_id"][-1]
        groups, own_radii = (frame.filter(pl.col("evaluation_id") == newest) for frame in (groups, radii))
        blocks += [heading(str(policy)), *_in_all(source, newest), _groups(groups), *_abstained(own_radii)]
        blocks += [*_slices(source, newest, groups), *_map(source, own_radii, newest)]
    return blocks


def _in_all(source: Source, evaluation: str) -> list[Block]:
    rows = source.read("scores").filter(
        (pl.col("snapshot_id") == source.snapshot_id) & (pl.col("evaluation_id") == evaluation)
    )
    by_metric = {row["metric"]: row for row in rows.to_dicts()}
    titles = {
        "radius_coverage": "places within the radius, of all answers that have one",
        "radius_coverage_given": "of the answers that are given",
        "abstention_rate": "answers that are not given",
    }
    lines = [
        (title, share(by_metric[name], 1), by_metric[name]["n"]) for name, title in titles.items() if name in by_metric
    ]
    if "radius_median_km" in by_metric:
        middle = by_metric["radius_median_km"]
        lines.append(("median radius", distance(middle["value"]), middle["n"]))
    return [table(["on the benchmark", "", "n"], lines, ["text", "text", "number"])]


def _groups(rows: pl.DataFrame) -> Block:
    lines = [
        (
            row["radius_group"],
            row["answers"],
            f"{row['share']:.0%}",
            "not enough answers" if row["quantile"] is None else _promise(row),
        )
        for row in rows.to_dicts()
    ]
    return table(["group", "validation answers", "promised", "within"], lines, ["text", "number", "text", "text"])


def _promise(row: dict[str, Any]) -> str:
    if row["floor_km"] is None:
        return distance(row["quantile"])
    return f"{row['quantile']:.2f} x ({row['floor_km']:g} km + the attempts' distance)"


def _slices(source: Source, evaluation: str, groups: pl.DataFrame) -> list[Block]:
    rows = source.read("score_slices").filter(
        (pl.col("snapshot_id") == source.snapshot_id)
        & (pl.col("evaluation_id") == evaluation)
        & (pl.col("metric") == "radius_coverage")
        & (pl.col("n") > 0)
    )
    answers = dict(groups.select("radius_group", "answers").iter_rows())
    promised = groups["share"][0]
    ordered = rows.sort(pl.col("slice_by") != "radius_group", -pl.col("n"), "slice_by", "slice").to_dicts()
    lines = [
        (row["slice_by"].replace("_", " "), row["slice"], share(row, 1), row["n"], *_verdict(row, answers, promised))
        for row in ordered
    ]
    about = (
        "the share is promised for radius groups, over draws of validation and benchmark pictures: with few of either "
        "it varies, as much as the last but one column says; other slices may differ"
    )
    kinds: list[Any] = ["text", "text", "text", "number", "text", "text"]
    titles = ["by", "slice", "places within the radius", "n", f"95 % of draws at {promised:.0%}", ""]
    return [heading("Coverage by slice", about), table(titles, lines[:MOST], kinds)]


def _verdict(row: dict[str, Any], answers: dict[str, int], promised: float) -> tuple[str, str]:
    """The range that chance leaves a group's coverage, and where it lies; nothing for slices without a promise."""
    if row["slice_by"] != "radius_group" or row["slice"] not in answers:
        return "", ""
    n = answers[row["slice"]]
    rank = math.ceil(round((n + 1) * promised, 9))
    # With n exchangeable answers before, the number covered of m new ones is beta-binomial.
    from scipy.stats import betabinom

    low, high = (betabinom.ppf(edge, row["n"], rank, n + 1 - rank) / row["n"] for edge in (0.025, 0.975))
    told = f"{100 * low:.1f} to {100 * high:.1f} %"
    if row["value"] < low:
        return told, "BELOW"
    return told, "above" if row["value"] > high else "holds"


def _abstained(radii: pl.DataFrame) -> list[Block]:
    counts = dict(radii["abstains"].drop_nulls().value_counts(sort=True).iter_rows())
    if not counts:
        return [words("No answer is held back.", "good")]
    return [
        bars(
            "Answers that are not given",
            [WHY.get(str(why), str(why)) for why in counts],
            {"answers": list(counts.values())},
        )
    ]


def _map(source: Source, radii: pl.DataFrame, evaluation: str) -> list[Block]:
    errors = source.read("predictions").filter(pl.col("evaluation_id") == evaluation).select("image_id", "error_km")
    places = source.read("labels").select("image_id", "lat", "lon")
    rows = radii.join(places, on="image_id").join(errors, on="image_id", how="left").sort("image_id")
    shown = []
    for row in rows.to_dicts():
        group = "not given" if row["abstains"] else GROUPS[row["covered"]]
        far = "no point" if row["error_km"] is None else f"{distance(row['error_km'])} off"
        reach = "not enough answers" if row["radius_km"] is None else f"radius {distance(row['radius_km'])}"
        shown.append((row["lat"], row["lon"], group, f"{far}, {reach}", f"picture/{row['image_id']}"))
    return (
        [points("Benchmark pictures: within their answer's radius, outside, without one, or not given", shown)]
        if shown
        else []
    )
