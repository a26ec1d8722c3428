"""The summary a command ends with: what was made and where to look."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from flows.cli.command import Call
from flows.cli.printing import how_to_activate, program
from tasks.agent.attempt import name_by_tools
from tasks.evaluate.coverage import benchmark_coverage
from tasks.evaluate.file_report import format_metric
from tasks.evaluate.score_report import newest_evaluations
from tasks.lake import Lake
from tasks.review.coverage import coverage, coverage_lines
from tasks.runtime.items.outcome import StageResult
from tasks.runtime.report import report_folder

SPLITS = ("train", "validation", "benchmark")
MOST_REASONS = 4  # of a stage, named in the summary
FOUND_KM = 25.0
WATCHED = 3  # pictures for the packaged agent, which finds some places and not others
METRICS = (
    *("acc@25km", "acc@50km", "acc@200km", "acc@750km", "geoscore_mean", "parse_failure_rate", "tokens_mean"),
    *("radius_coverage", "radius_median_km"),
)


def closing_json(results: Sequence[StageResult], lake: Lake) -> dict[str, Any]:
    """The summary for a machine."""
    return {
        "lake": lake.uri,
        "stages": [dataclasses.asdict(result) for result in results],
        "reports": {stage: str(folder) for stage, folder in _reports(results, lake).items()},
    }


def closing_words(results: Sequence[StageResult], lake: Lake, call: Call) -> str:
    """What was made and where to look, as text."""
    lines = [""]
    if results and all(result.nothing_to_do for result in results):
        done = sum(result.total for result in results)
        lines.append(f"Nothing to redo: all {done:,} items of {len(results)} steps were finished before.")
    failed = sum(result.failed for result in results)
    if failed:
        lines.append(f"{failed:,} items failed and are retried by the next run: {_command('show failures', call)}")
        lines += _failures(results, lake)
    for service, seconds in _paused(results).items():
        lines.append(
            f"{service} said that its limit was reached: requests to it paused for {seconds:.0f} s in all; "
            f"lower its budgets (services.{service}.…_per_minute, …_per_day) if that happens again"
        )
    lines += _refused(results, call)
    lines += _without_verdict(results, lake)
    if any(result.stage == "plan" for result in results):
        lines += _plan(lake)
    if call.demo or any(result.stage.startswith("evaluate") for result in results):
        lines += _made(lake, call.options().resolve().train.recipe)
    elif any(result.stage.split(".")[0] == "train" for result in results):
        lines += _models(lake, call.options().resolve().train.recipe)
    elif any(result.stage.split(".")[0] == "collect" for result in results):
        got = _coverage(lake) or ["nothing yet: no picture, and no reason why not"]
        lines += ["What the places got:", *(f"  {line}" for line in got)]
    lines += _where_to_look(results, lake, call)
    return "\n".join(lines)


def _plan(lake: Lake) -> list[str]:
    """What was drawn, by split: the shares come from a profile as often as from the user."""
    rows = lake.scan("places").filter(pl.col("tombstone").is_null())
    splits = dict(lake.collect("places", rows.group_by("split").len()).iter_rows())
    facts = rows.select(pl.col("country").n_unique(), pl.col("seed").unique().implode())
    countries, seeds = lake.collect("places", facts).row(0)
    if not splits:
        return []
    shares = ", ".join(f"{splits[split]:,} {split}" for split in SPLITS if split in splits)
    seed = f"seed {seeds[0]}; " if len(seeds) == 1 else ""
    return [
        f"The plan: {sum(splits.values()):,} places in {countries:,} countries: {shares} "
        f"({seed}{program()} settings plan)"
    ]


def _paused(results: Sequence[StageResult]) -> dict[str, float]:
    every: dict[str, float] = {}
    for result in results:
        for service, seconds in result.paused_s.items():
            every[service] = every.get(service, 0.0) + seconds
    return every


def _failures(results: Sequence[StageResult], lake: Lake) -> list[str]:
    """Why items failed, the most frequent reasons first, each with one of its messages."""
    failures = lake.read("failures", columns=["stage", "kind", "message"])
    ranked = []
    for result in results:
        for kind, count in result.failures.items():
            messages = failures.filter(pl.col("stage") == result.stage, pl.col("kind") == kind)["message"].drop_nulls()
            example = " ".join(str(messages[0]).split()) if messages.len() else ""
            ranked.append((-count, f"  {result.stage:<20} {count:,} {kind}{f': {example}' if example else ''}"))
    # Among equally many the earlier stage first: what comes after it may have failed for want of it.
    return [line for _, line in sorted(ranked, key=lambda entry: entry[0])[:MOST_REASONS]]


def _refused(results: Sequence[StageResult], call: Call) -> list[str]:
    """What the stages rejected in this run, by reason, the most frequent first."""
    lines = []
    for result in results:
        reasons = sorted(result.rejects.items(), key=lambda reject: (-reject[1], reject[0]))
        if reasons:
            more = f" and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
            named = ", ".join(f"{count:,} {reason}" for reason, count in reasons[:MOST_REASONS])
            lines.append(f"  {result.stage:<20} {sum(result.rejects.values()):,}: {named}{more}")
    return [f"Rejected, with the reason ({_command('show rejects', call)}):", *lines] if lines else []


def _made(lake: Lake, recipe: str) -> list[str]:
    lines = ["What it made:"]
    counts = {name: lake.read(name, columns=["tombstone"]).height for name in ("places", "images", "labels")}
    lines.append(
        f"  {counts['places']:,} places, {counts['images']:,} images with licence and creator, "
        f"{counts['labels']:,} of them localizable and labelled"
    )
    lines += [f"    {line}" for line in _coverage(lake)]
    trajectories = lake.read("trajectories", columns=["verdict"])["verdict"]
    lines.append(f"  {(trajectories == 'kept').sum():,} trajectories kept of {trajectories.len():,} sampled")
    regimes = lake.read("regimes", columns=["kept", "policy", "written_at"]).sort("written_at")
    regimes = regimes.filter(~_of_other_recipe(lake, recipe))
    if regimes.height:
        policy = regimes["policy"][-1]
        kept = regimes.filter(pl.col("policy") == policy)["kept"]
        lines.append(f"  {kept.sum():,} of {kept.len():,} images to learn from by Pass@K of {policy}")
    return lines + _models(lake, recipe) + _score_lines(lake, recipe)


def _models(lake: Lake, recipe: str) -> list[str]:
    """The recipe's newest model of every phase, and how it went."""
    own = lake.read("models").filter(pl.col("recipe") == recipe)
    newest = own.sort("written_at").unique("training_stage", keep="last", maintain_order=True)
    return [
        f"  model {model['training_stage']:<11} {model['model_id']}  {model['samples']:,} samples, "
        f"{model['steps']:,} steps{_course(model)}"
        for model in newest.iter_rows(named=True)
    ]


def _coverage(lake: Lake) -> list[str]:
    return coverage_lines(coverage(*(lake.read(name) for name in ("places", "images", "gaps", "rejects"))))


def _course(model: dict[str, Any]) -> str:
    """How loss or reward went (the mean of the first and of the last tenth of the steps), and on held-out pictures."""
    metrics = json.loads(model["metrics_json"] or "{}")
    shown = metrics.get("validations") or []
    held_out = ""
    if len(shown) > 1:
        read, loss = ([step[name] for step in (shown[0], shown[-1])] for name in ("unread", "loss"))
        held_out = (
            f"; on {shown[-1]['images']:.0f} held-out pictures loss {loss[0]:.2f} -> {loss[1]:.2f}, "
            f"answers that can be read {1 - read[0]:.0%} -> {1 - read[1]:.0%}"
        )
    name = "reward" if "reward" in metrics else "loss"
    course = metrics.get(name) or []
    if not course:
        return ""
    tenth = max(1, len(course) // 10)
    first, last = (sum(tenth_of) / len(tenth_of) for tenth_of in (course[:tenth], course[-tenth:]))
    if name == "reward" and not any(course):
        return f", no completion earned a reward{held_out}"
    return f", {name} {first:.2f} -> {last:.2f}{held_out}"


def _score_lines(lake: Lake, recipe: str) -> list[str]:
    columns = ["split", "policy", "metric", "value", "n", "evaluation_id", "snapshot_id", "written_at"]
    scores = lake.read("scores", columns=columns).sort("written_at")
    scores = scores.filter(~_of_other_recipe(lake, recipe))
    scores = name_by_tools(scores, lake.read("predictions", columns=["evaluation_id", "tools"]))
    # Scores of other snapshots and settings stand beside the newest ones.
    newest = newest_evaluations(scores)
    scores = scores.join(newest, on=["policy", "evaluation_id", "snapshot_id"], how="semi", maintain_order="left")
    scores = scores.filter(pl.col("metric").is_in(METRICS), pl.col("value").is_not_null())
    if scores.is_empty():
        return []
    shown = [name for name in METRICS if name in set(scores["metric"])]
    head = "".join(
        f"{name.removesuffix('_mean').replace('radius_median', 'radius').replace('_rate', 's').replace('_', ' '):>16}"
        for name in shown
    )
    lines, width = [], max(34, *(len(name) + 1 for name in scores["policy"]))
    for (split,), on_split in scores.group_by("split", maintain_order=True):
        lines.append(f"  scores on the {split} split:" if split else "  scores of an earlier version, split not kept:")
        lines.append(f"    {'policy':<{width}}{'n':>6}{head}")
        for (policy,), rows in on_split.group_by("policy", maintain_order=True):
            values = dict(rows.select("metric", "value").iter_rows())
            cells = "".join(f"{format_metric(name, values[name]) if name in values else '-':>16}" for name in shown)
            lines.append(f"    {policy:<{width}}{rows['n'][0]:>6,}{cells}")
    return [*lines, *(f"    {line}" for line in benchmark_coverage(lake))]


def _without_verdict(results: Sequence[StageResult], lake: Lake) -> list[str]:
    """How many pictures this run labelled without asking a judge, and why."""
    if not any(result.stage == "curate.labels" and not result.nothing_to_do for result in results):
        return []
    labels = lake.read("labels", columns=["image_id", "localizability"]).filter(pl.col("localizability").is_null())
    images = lake.read("images", columns=["image_id", "purpose"]).join(labels, on="image_id", how="semi")
    published, others = images["purpose"].count(), images["purpose"].null_count()
    lines = []
    if published:
        lines.append(f"{published:,} pictures of published sets are labelled as they are: no judge sees them")
    if others:
        lines.append(
            f"{others:,} pictures are labelled without a verdict (curate.judge.pictures): the offline judge knows only "
            "pictures that the offline world painted; --profile production judges photos"
        )
    return lines


def _of_other_recipe(lake: Lake, recipe: str) -> pl.Expr:
    """Whether the policy of a row is a model that another recipe trained."""
    models = lake.read("models", columns=["model_id", "recipe"]).filter(pl.col("recipe") != recipe)["model_id"]
    named = pl.col("policy").str.strip_prefix("trained:").str.split(" ").list.first()  # `trained:ID pass@1` too
    return named.is_in(models.implode())


def _reports(results: Sequence[StageResult], lake: Lake) -> dict[str, Path]:
    """Folders of the reports of the stages that ran."""
    stages = dict.fromkeys(result.stage.split(".")[0] for result in results)
    return {stage: report_folder(lake, stage) for stage in stages if report_folder(lake, stage).is_dir()}


def _where_to_look(results: Sequence[StageResult], lake: Lake, call: Call) -> list[str]:
    lines = ["Where to look:"]
    for stage, folder in _reports(results, lake).items():
        names = sorted(path.name for path in folder.iterdir() if path.suffix != ".txt")
        where = f"{folder}/" if lake.blobs.is_local else f"{lake.blobs.uri(f'reports/{stage}')}/  (copy: {folder}/)"
        lines.append(f"  {stage:<10} {where}  ({', '.join(names)})")
    snapshots = lake.read("snapshots").sort("written_at")
    if snapshots.height:
        last = snapshots.row(-1, named=True)
        lines.append(f"  report     {_address(lake, last['report'])}  ({last['status']})")
    lines.append(f"  tables     {_command('tables', call)}")
    samples = lake.read("samples").filter(pl.col("trajectory_id").is_not_null())
    if samples.height:
        lines.append(f"  one row    {_command('trace ' + samples['sample_id'].sort()[0], call)}")
    if call.demo:
        lines += _watched(lake, call)
    activate = how_to_activate()
    return [*lines, f"  shell      {activate}"] if activate else lines


def _watched(lake: Lake, call: Call) -> list[str]:
    """A command that shows the packaged agent at work on panoramas that curation kept.

    Pictures that it placed itself come first, then those whose board a kept trajectory of its recipe read, then what
    others placed to the street with tools.
    """
    from tasks.agent.attempt import PACKAGED, PACKAGED_RECIPE

    images = lake.read("images", columns=["image_id", "kind", "sha256", "extension"])
    kept = lake.read("labels", columns=["image_id"])
    tried = lake.read("trajectories", columns=["image_id", "verdict", "tool_calls", "error_km", "recipe"])
    by_tools = tried.filter((pl.col("verdict") == "kept") & (pl.col("tool_calls") > 0)).select(
        "image_id", "error_km", order=pl.when(recipe=PACKAGED_RECIPE).then(1).otherwise(2)
    )
    own = lake.read("predictions", columns=["image_id", "policy", "error_km"]).filter(policy=PACKAGED)
    by_itself = own.filter(pl.col("error_km") <= FOUND_KM).select("image_id", "error_km", order=pl.lit(0))
    error = (
        pl.concat([by_itself, by_tools], how="vertical_relaxed")
        .sort("order", "error_km")
        .unique("image_id", keep="first")
    )
    watched_rows = (
        images.join(kept, on="image_id", how="semi")
        .filter(pl.col("kind") == "panorama")
        .join(error, on="image_id", how="left")
        .sort("order", "error_km", "image_id", nulls_last=True)
        .head(WATCHED)
    )
    if not lake.blobs.is_local or watched_rows.is_empty():
        return []
    files = (Path(lake.images.path(row["sha256"], row["extension"])) for row in watched_rows.iter_rows(named=True))
    here = Path.cwd()
    pictures = " ".join(
        shlex.quote(str(file.relative_to(here) if file.is_relative_to(here) else file)) for file in files
    )
    return [f"  agent      {_command(f'locate {pictures} --model {PACKAGED}', call)}"]


def _command(words: str, call: Call) -> str:
    """A command that the user can copy into the shell."""
    return f"{program()} {words}" + (f" --lake {shlex.quote(call.lake)}" if call.lake else "")


def _address(lake: Lake, key: str) -> str:
    """Where a report lies; of a remote lake also the copy on this machine, which a browser can open."""
    return lake.blobs.uri(key) if lake.blobs.is_local else f"{lake.blobs.uri(key)}  (copy: {_copy(lake, key)})"


def _copy(lake: Lake, key: str) -> Path:
    lake.blobs.pull(key.rpartition("/")[0])  # the page with what lies beside it
    return lake.blobs.local(key)
