"""The steps that turn answers into metrics with intervals: overall, by slices, and policies against each other."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.evaluate.answers import answer_identity, items, splits_asked
from tasks.evaluate.ensembles import ATTEMPT_COLUMNS, METHODS, expected_predictions
from tasks.evaluate.fresh_benchmark import months_of
from tasks.evaluate.grounding import grounding_metrics
from tasks.evaluate.radius import radius_metrics
from tasks.evaluate.slices import continents
from tasks.geo.climate import climate_belt
from tasks.geo.distance import distance_km
from tasks.reward.answer import Address, parse_answer
from tasks.reward.levels import LEVELS, levels_by_rule
from tasks.reward.metrics import Metric, compare, resampled_rows, share, summarize
from tasks.runtime.labelled import empty_rows
from tasks.runtime.runner import ColumnStage, Inputs, Row

ALWAYS = "parse_failure_rate"  # a metric that every evaluation has
TOOL_RATE = "tool_rate/"  # and the tool's name: the share of answers that called it
_TEXTS = (
    *("id", "evaluation_id", "other_id", "snapshot_id", "split", "slice_by", "slice", "metric", "policy"),
    "other_policy",
)
_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}
_SLICED = (
    *("acc@1km", "acc@25km", "acc@200km", "acc@750km", "median_km", "geoscore_mean", ALWAYS),
    *("acc@0.5km", "acc@2km", "acc@10km", "acc@50km"),  # Thinking with Map by tier, smileGeo by category
    "grounded_rate",
    *("radius_coverage", "radius_median_km", "abstention_rate"),
    *(f"{level}_accuracy" for level in LEVELS),  # GeoVista's Table 2: the city by kind of picture
)


def answered_evaluations(inputs: Inputs, settings: EvaluateSettings) -> tuple[dict[str, pl.DataFrame], list[Row]]:
    """The rows of every evaluation whose pictures are all answered, and a reject for each that is not.

    Of an evaluation that is the mean of N attempts there are N rows a picture, the pictures in order. An evaluation
    with pictures still to ask has no score: over the answered ones alone the denominator would be another. It is
    rejected as `incomplete` until a later run has the rest.
    """
    expected = items(inputs, settings).select("evaluation_id", "policy", "image_id", "lat", "lon")
    expected = pl.concat([expected, expected_predictions(inputs, settings)])
    answers = _attempts(inputs).rename({"lat": "said_lat", "lon": "said_lon"}).with_columns(pl.lit(True).alias("found"))
    names = inputs.frame("labels").select(
        *("image_id", "country_code", "country", "region", "city", "tier", "localizability_score", "scenes_json")
    )
    kinds = inputs.frame("images").select("image_id", "kind")
    kinds = kinds.join(months_of(inputs.frame("benchmarks")), on="image_id", how="left")
    table = expected.join(answers, on=["evaluation_id", "image_id"], how="left").join(names, on="image_id", how="left")
    table = table.join(kinds, on="image_id", how="left").sort("evaluation_id", "image_id")
    evaluations: dict[str, pl.DataFrame] = {}
    rejects: list[Row] = []
    for (evaluation,), rows in table.group_by("evaluation_id", maintain_order=True):
        have = rows["found"].count()
        if have == rows.height:
            evaluations[str(evaluation)] = rows
            continue
        evidence = json.dumps({"policy": rows["policy"][0], "pictures": rows.height, "answered": have})
        # Under the id of a score, so that the reject ends when that score is made.
        reject_id = f"{evaluation}|{inputs.snapshot_id}|{ALWAYS}"
        rejects.append({"id": reject_id, "reason": "incomplete", "evidence_json": evidence})
    return evaluations, rejects


def _attempts(inputs: Inputs) -> pl.DataFrame:
    """What was answered: a prediction's own row, or those of the attempts whose mean it stands for."""
    keys = ("evaluation_id", "image_id")
    single = inputs.frame("predictions").select(*keys, *ATTEMPT_COLUMNS)
    told = inputs.frame("deliberations").select(*keys, "attempts_json").drop_nulls()
    several = [
        {**dict(zip(keys, (evaluation, image), strict=True)), **entry}
        for evaluation, image, text in told.iter_rows()
        for entry in json.loads(text)
    ]
    if not several:
        return single
    return pl.concat([single.join(told, on=keys, how="anti"), pl.DataFrame(several, schema=single.schema)])


def repeats(rows: pl.DataFrame) -> int:
    """How many answers each picture has; of an evaluation all have as many."""
    return rows.height // max(1, rows["image_id"].n_unique())


def errors(rows: pl.DataFrame) -> np.ndarray:
    """Kilometres from the truth, NaN for an answer without a point."""
    return distance_km(*(rows[name].to_numpy() for name in ("said_lat", "said_lon", "lat", "lon")))


def scores(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every metric of every evaluation. Scores belong to the snapshot whose pictures were answered."""
    kept: list[Row] = []
    rejects: list[Row] = []
    for evaluation, rows, head in _each_split(inputs, settings, rejects):
        within = radius_metrics(_radii(inputs, evaluation))
        held = grounding_metrics(_grounded(inputs, rows), _first_errors(rows))
        known = _known_places(rows, inputs.frame("labels"))
        kept += _score_rows([*_metrics(rows, settings), *known, *within, *held], head)
    return _frame(kept, "scores", "value", "low", "high"), pl.DataFrame(rejects, schema=_REJECTS)


def _each_split(
    inputs: Inputs, settings: EvaluateSettings, rejects: list[Row]
) -> Iterator[tuple[str, pl.DataFrame, Row]]:
    """Every whole evaluation with its rows and head; of the validation split, too, where radii need it."""
    for split_settings in splits_asked(settings):
        evaluations, incomplete = answered_evaluations(inputs, split_settings)
        rejects += incomplete
        for evaluation, rows in evaluations.items():
            yield evaluation, rows, _head(evaluation, rows, inputs, split_settings)


def _radii(inputs: Inputs, evaluation: str) -> pl.DataFrame:
    mine = (pl.col("evaluation_id") == evaluation) & (pl.col("snapshot_id") == inputs.snapshot_id)
    return inputs.frame("radii").filter(mine)


def _grounded(inputs: Inputs, rows: pl.DataFrame) -> pl.DataFrame:
    """What is known of the reasons of these answers; of several to a picture, of the first."""
    groundings = inputs.frame("groundings").filter(pl.col("evaluation_id") == rows["evaluation_id"][0])
    return groundings.join(rows.select("image_id").unique(), on="image_id", how="semi")


def _first_errors(rows: pl.DataFrame) -> dict[str, float]:
    firsts = rows.unique("image_id", keep="first", maintain_order=True)
    return dict(zip(firsts["image_id"], errors(firsts), strict=True))


def score_rows(metrics: Sequence[Metric], head: Row) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `scores` of one evaluation, as a step returns them; `head` is what they have in common."""
    return _frame(_score_rows(metrics, head), "scores", "value", "low", "high"), pl.DataFrame(schema=_REJECTS)


def _score_rows(metrics: Sequence[Metric], head: Row) -> list[Row]:
    rows = []
    for metric in metrics:
        row = metric.as_row()
        name = row.pop("name")
        rows.append({"id": f"{head['evaluation_id']}|{head['snapshot_id']}|{name}", **head, "metric": name, **row})
    return rows


def _head(evaluation: str, rows: pl.DataFrame, inputs: Inputs, settings: EvaluateSettings) -> Row:
    """What all scores of an evaluation have in common."""
    about = {"snapshot_id": inputs.snapshot_id, "split": settings.split}
    return {"evaluation_id": evaluation, "policy": rows["policy"][0], **about}


def _metrics(rows: pl.DataFrame, settings: EvaluateSettings) -> list[Metric]:
    by_rule, times = _levels_by_rule(rows), repeats(rows)
    metrics = summarize(errors(rows), by_rule, settings.resamples, settings.seed, times)
    if settings.verifier:
        told = [json.loads(text or "{}") for text in rows["levels_json"]]
        for level, rule in by_rule.items():
            by_model = np.array([bool((verdict.get(level) or {}).get("model")) for verdict in told])
            judged = ~np.isnan(rule)
            right = int(((rule == 1) | by_model)[judged].sum())
            metrics.append(share(f"{level}_accuracy_with_model", right / times, int(judged.sum()) // times))
    if settings.geocode:
        by_address = summarize(_floats(rows["address_km"]), None, settings.resamples, settings.seed, times)
        metrics += [
            Metric(f"address_{metric.name}", metric.value, metric.low, metric.high, metric.n) for metric in by_address
        ]
    calls, successes = int(rows["tool_calls"].fill_null(0).sum()), int(rows["tool_successes"].fill_null(0).sum())
    called = int((rows["tool_calls"].fill_null(0) > 0).sum())
    metrics.append(share("tool_rate", called / times, rows.height // times))
    metrics.append(share("tool_success_rate", successes, calls))
    for tool, used in _by_tool(rows).items():  # SpotAgent, figure 7a
        metrics.append(share(f"{TOOL_RATE}{tool}", used / times, rows.height // times))
    tokens = _floats(rows["prompt_tokens"]) + _floats(rows["completion_tokens"])
    for name, values in (
        ("tokens_mean", tokens),
        ("seconds_mean", _floats(rows["seconds"])),
        ("cost_usd_mean", _floats(rows["cost_usd"])),
    ):
        metrics.append(_mean(name, values, settings, times))
    return metrics


def _known_places(rows: pl.DataFrame, labels: pl.DataFrame) -> list[Metric]:
    """smileGeo eq. 6: of the places of the train split those that are answered, and of these those of the train split.

    A place is a city with its region and country.
    """
    names = ("country", "region", "city")
    tested, trained = (
        set(frame.select(names).drop_nulls("city").iter_rows())
        for frame in (rows, labels.filter(pl.col("split") == "train"))
    )
    both = len(tested & trained)
    return [share("coverage", both, len(trained)), share("consistency", both, len(tested))]


def _by_tool(rows: pl.DataFrame) -> dict[str, int]:
    """How many answers called each tool, by name."""
    used = rows["tool_pattern"].drop_nulls().str.split(" > ").explode()
    counts = used.filter(used != "none").value_counts(name="count").sort(used.name)
    return dict(counts.iter_rows())


def _floats(column: pl.Series) -> np.ndarray:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _mean(name: str, values: np.ndarray, settings: EvaluateSettings, times: int) -> Metric:
    """The mean of what is known, with its bootstrap interval; of several answers a picture, drawn one a picture."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Metric(name, np.nan, np.nan, np.nan, 0)
    rng = np.random.default_rng(settings.seed)
    n = max(1, len(known) // times)
    drawn = np.concatenate(
        [known[rows].mean(axis=1) for rows in resampled_rows(len(known), n, settings.resamples, rng)]
    )
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Metric(name, float(known.mean()), float(low), float(high), n)


def _levels_by_rule(rows: pl.DataFrame) -> dict[str, np.ndarray]:
    """Whether each answer has each level right, NaN where the truth has none."""
    levels = [
        levels_by_rule(parse_answer(row["answer"]), Address(row["country"], row["region"], row["city"]))
        for row in rows.select("answer", "country", "region", "city").iter_rows(named=True)
    ]
    told = {level: [verdict[level] for verdict in levels] for level in LEVELS}
    return {
        level: np.array([np.nan if mark is None else float(mark) for mark in column]) for level, column in told.items()
    }


def slices(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The main metrics by kind, tier, localizability, scene category, country, continent, tool pattern and month."""
    kept: list[Row] = []
    for evaluation, rows, head in _each_split(inputs, settings, []):
        km, levels = errors(rows), _levels_by_rule(rows)
        radii = _radii(inputs, evaluation)
        for by, name, mask in _groups(rows, radii):
            right = {level: verdict[mask] for level, verdict in levels.items()}
            # Attempts at one picture may differ in their tools: such a slice counts attempts.
            times = 1 if by == "tool_pattern" else repeats(rows)
            metrics = summarize(km[mask], right, settings.resamples, settings.seed, times)
            held = _grounded(inputs, rows.filter(mask))
            metrics += grounding_metrics(held, _first_errors(rows.filter(mask)))
            metrics += radius_metrics(radii.filter(pl.col("image_id").is_in(rows["image_id"].filter(mask).implode())))
            for metric in metrics:
                if metric.name in _SLICED:
                    row = metric.as_row()
                    key = f"{evaluation}|{inputs.snapshot_id}|{by}|{name}|{row['name']}"
                    metric_name = row.pop("name")
                    kept.append({"id": key, **head, "slice_by": by, "slice": name, "metric": metric_name, **row})
    return _frame(kept, "score_slices", "value", "low", "high"), pl.DataFrame(schema=_REJECTS)


def _groups(rows: pl.DataFrame, radii: pl.DataFrame) -> list[tuple[str, str, np.ndarray]]:
    """(what it is sliced by, the slice, which rows)."""
    score = rows["localizability_score"].cast(pl.Float64)
    columns = {
        "kind": rows["kind"],
        "tier": rows["tier"],
        "localizability": (score // 2 * 2).cast(pl.Int64).cast(pl.String),
        "country": rows["country"],
        "belt": climate_belt(rows["lat"]),
        "continent": rows["country_code"].replace_strict(continents(), default=None, return_dtype=pl.String),
        "tool_pattern": rows["tool_pattern"],
        "month": rows["month"],  # of the fresh benchmark: memorising shows as a gap between months
        "radius_group": rows.join(radii, on="image_id", how="left", maintain_order="left")["radius_group"],
    }
    groups = [
        (by, str(name), (values == name).fill_null(False).to_numpy())
        for by, values in columns.items()
        for name in values.drop_nulls().unique().sort()
    ]
    scenes = [json.loads(text) if text else {} for text in rows["scenes_json"]]
    for category in sorted({name for scene in scenes for name in scene}):
        mask = np.array([scene.get(category) == "yes" for scene in scenes])
        if mask.any():
            groups.append(("category", category, mask))
    return groups


def pairs(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every two evaluations of the same pictures, compared picture by picture."""
    evaluations = list(answered_evaluations(inputs, settings)[0].items())
    kept: list[Row] = []
    for number, (first_id, first) in enumerate(evaluations):
        for second_id, second in evaluations[number + 1 :]:
            # Both have all pictures, in order; where one has several answers to each, they are columns.
            a, b = (errors(rows).reshape(-1, repeats(rows)) for rows in (first, second))
            for pair in compare(a, b, settings.resamples, settings.seed):
                row = pair.as_row()
                kept.append(
                    {
                        "id": f"{first_id}|{second_id}|{inputs.snapshot_id}|{row['metric']}",
                        "evaluation_id": first_id,
                        "other_id": second_id,
                        "snapshot_id": inputs.snapshot_id,
                        "policy": first["policy"][0],
                        "other_policy": second["policy"][0],
                        **row,
                    }
                )
    return _frame(kept, "score_pairs", "first", "second", "difference", "low", "high", "p"), pl.DataFrame(
        schema=_REJECTS
    )


def _frame(rows: list[Row], table: str, *floats: str) -> pl.DataFrame:
    if not rows:
        return empty_rows(table)
    kinds: dict[str, Any] = dict.fromkeys(floats, pl.Float64)
    kinds |= {name: pl.String for name in _TEXTS if name in rows[0]}
    return pl.DataFrame(rows, schema_overrides=kinds, infer_schema_length=None)


def identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings scores depend on, beside the answers themselves."""
    return {
        **answer_identity(settings),
        **{name: method.identity(settings) for name, method in METHODS.items()},
        "resamples": settings.resamples,
        "seed": settings.seed,
    }


Compute = Callable[[Inputs, EvaluateSettings], tuple[pl.DataFrame, pl.DataFrame]]


def _stage(name: str, table: str, compute: Compute) -> ColumnStage:
    return ColumnStage(
        name=name,
        reads=("predictions", "deliberations", "labels", "images", "models", "radii", "groundings", "benchmarks"),
        writes=(table,),
        compute=compute,
        identity=identity,
        snapshot=True,
        keeps_history=True,
    )


STAGE = _stage("evaluate.scores", "scores", scores)
SLICES = _stage("evaluate.slices", "score_slices", slices)
PAIRS = _stage("evaluate.pairs", "score_pairs", pairs)
