"""Commands that run the pipeline: all of it, a stretch of it, or one stage."""

import ast
import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.command import Call, UsageError
from flows.cli.options import Budget, Keep, Redo, Snapshot, command
from flows.cli.review_commands import Reviewer, bring_in_marks, serve_site
from flows.order import STAGES
from schemas.extras import require_extras

GROUP = "Run the pipeline"
ONE_STAGE = "Run one stage"
# What `--dry-run` of a stage does.
DRY_RUN = {
    "plan": "show the plan and its maps; plan nothing",
    "collect": "estimate requests, bytes, time and API budget; fetch nothing",
    "train": "say what fits on the GPUs seen; load and write nothing",
    **dict.fromkeys(
        ("curate", "synthesize", "difficulty", "evaluate"), "estimate calls to models, tokens, money and time"
    ),
}

# What a newcomer would type first; a stage without an entry gets the plain one.
EXAMPLES = {
    "plan": ["geofix plan --set plan.places=200", "geofix plan --set 'plan.countries=[FR, BR, JP]' --lake my-lake"],
    "collect": ["geofix collect --dry-run", "geofix collect --set collect.photos=2"],
    "review": ["geofix review", "geofix review --serve", "geofix review --import marks.json --reviewer Ada"],
    "synthesize": ["geofix synthesize --dry-run", "geofix synthesize --budget 1.50"],
    "train": [
        "geofix train",
        "geofix train --set train.base=/models/Qwen2.5-VL-7B-Instruct --set train.precision=bf16",
        "geofix train --set train.base=/models/Qwen2.5-VL-7B-Instruct --dry-run --gpu 80GB",
    ],
    "evaluate": ["geofix evaluate --set 'evaluate.policies=[answerer-base, answerer-large]'"],
}


def register(app: typer.Typer) -> None:
    """The commands of the pipeline, and one for each stage that flows/order.py names."""
    command(
        app,
        GROUP,
        ["geofix demo", "geofix demo --lake /data/demo --set plan.places=20"],
        without=("recipe", "profile"),
    )(demo)
    command(
        app,
        GROUP,
        [
            "geofix run --config my.yaml",
            "geofix run --profile production --dry-run",
            "geofix run --from synthesize --snapshot 3c44bc07",
            "geofix run --to review",
        ],
    )(run)
    command(app, GROUP, ["geofix refresh", "geofix refresh --profile production --lake /data/lake"])(refresh)
    for stage in STAGES:
        _register_stage(app, stage)


def demo(call: Call, redo: Redo = False, keep: Keep = False) -> int:
    """Run the whole pipeline, small, on the offline world; ends with where to look."""
    require_extras("geofix demo", "offline", "train")
    return run_choosing("pipeline", dataclasses.replace(call, profile="offline", demo=True), redo, keep)


def run(
    call: Call,
    first: Annotated[str, typer.Option("--from", metavar="STAGE", help="First stage to run.")] = STAGES[0],
    last: Annotated[str, typer.Option("--to", metavar="STAGE", help="Last stage to run.")] = STAGES[-1],
    snapshot: Snapshot = None,
    redo: Redo = False,
    keep: Keep = False,
    budget: Budget = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only compare with the paper's numbers and estimate money and hours.")
    ] = False,
) -> int:
    """Run the pipeline or a stretch of it; finished items are skipped."""
    for option, stage in (("--from", first), ("--to", last)):
        if stage not in STAGES:
            raise UsageError(f"{option}: there is no stage '{stage}'; the stages are {', '.join(STAGES)}")
    if STAGES.index(first) > STAGES.index(last):
        raise UsageError(f"--from {first} comes after --to {last}; the order is {', '.join(STAGES)}")
    if snapshot and STAGES.index(first) <= STAGES.index("review"):
        raise UsageError(
            f"--snapshot {snapshot}: a run from {first} takes a new snapshot; start after it, such as "
            f"`geofix run --from {STAGES[STAGES.index('review') + 1]} --snapshot {snapshot}`"
        )
    call = with_budget(dataclasses.replace(call, snapshot=snapshot), budget)
    if dry_run:
        from flows.cli.dry_run import recipe_dry_run

        return recipe_dry_run(call, STAGES[STAGES.index(first) : STAGES.index(last) + 1])
    return run_choosing("pipeline", call, redo, keep, first=first, last=last)


def refresh(call: Call, redo: Redo = False, keep: Keep = False, budget: Budget = None) -> int:
    """Run plan, collect, curate and review: what a schedule runs."""
    return run_choosing("refresh", with_budget(call, budget), redo, keep)


def with_budget(call: Call, budget: float | None) -> Call:
    """The call with `--budget` as the setting it stands for."""
    if budget is None:
        return call
    return dataclasses.replace(call, overrides=[*(call.overrides or []), f"models.budget_usd={budget}"])


def _register_stage(app: typer.Typer, stage: str) -> None:
    def run_stage(
        call: Call,
        serve: Annotated[
            bool, typer.Option("--serve", help="Serve the newest site on loopback and take marks; review nothing.")
        ] = False,
        marks: Annotated[
            Path | None,
            typer.Option("--import", metavar="FILE", help="Bring in marks that the site saved; review nothing."),
        ] = None,
        reviewer: Reviewer = None,
        port: Annotated[int, typer.Option(min=1, max=65535, help="For --serve.")] = 8790,
        host: Annotated[str, typer.Option(metavar="ADDRESS", help="For --serve: where it listens.")] = "127.0.0.1",
        base_url: Annotated[
            str | None,
            typer.Option(metavar="URL", help="For --serve behind a proxy: its address; all reports are shown there."),
        ] = None,
        snapshot: Snapshot = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help=f"Only {DRY_RUN.get(stage, '')}.")] = False,
        gpu: Annotated[
            str | None, typer.Option(metavar="SIZE", help="For --dry-run: fit a GPU of this memory, such as 80GB.")
        ] = None,
        budget: Budget = None,
        redo: Redo = False,
        keep: Keep = False,
    ) -> int:
        if gpu and not dry_run:
            raise UsageError("--gpu goes with --dry-run; training takes the GPU that is there")
        if serve and marks:
            raise UsageError("--serve and --import exclude each other; give one of them")
        if serve or marks:
            return bring_in_marks(call, marks, reviewer) if marks else serve_site(call, reviewer, port, host, base_url)
        call = with_budget(dataclasses.replace(call, snapshot=snapshot), budget)
        if dry_run:
            from flows.cli.dry_run import dry_run as estimate
            from flows.cli.dry_run import plan_dry_run, train_dry_run

            if stage == "train":
                return train_dry_run(call, gpu)
            return plan_dry_run(call) if stage == "plan" else estimate(call, stage)
        return run_choosing(stage, call, redo, keep)

    has_models = stage in DRY_RUN and stage not in ("plan", "collect")
    without: tuple[str, ...] = () if stage == "review" else ("serve", "marks", "reviewer", "port", "host", "base_url")
    without += () if STAGES.index(stage) > STAGES.index("review") else ("snapshot",)
    without += (() if stage in DRY_RUN else ("dry_run",)) + (() if has_models else ("budget",))
    without += () if stage == "train" else ("gpu",)
    examples = EXAMPLES.get(stage, [f"geofix {stage}", f"geofix {stage} --lake /data/lake"])
    command(app, ONE_STAGE, examples, name=stage, about=about_stage(stage), without=without)(run_stage)


def about_stage(stage: str) -> str:
    """The first paragraph of the docstring of `tasks/<stage>`, read without importing it: that takes seconds."""
    package = importlib.util.find_spec("tasks")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / stage / "__init__.py"
        if file.is_file():
            text = ast.get_docstring(ast.parse(file.read_text())) or ""
            words = text.split("\n\n")[0].replace("\n", " ").removeprefix(f"{stage.capitalize()}: ")
            return f"{words[:1].upper()}{words[1:]}"
    return f"Run {stage}."


def with_choice(call: Call, redo: bool, keep: bool) -> Call:
    """The call with `--redo` or `--keep` as the setting it stands for; UsageError for both."""
    if redo and keep:
        raise UsageError("--redo and --keep exclude each other; give one of them")
    choice = ["run.redo=always"] if redo else ["run.redo=never"] if keep else []
    return dataclasses.replace(call, overrides=[*choice, *(call.overrides or [])])


def run_choosing(name: str, call: Call, redo: bool, keep: bool, **parameters: Any) -> int:
    """Run a flow, finished items done again or left as the user chose."""
    from flows.cli.running import run_flow

    return run_flow(name, with_choice(call, redo, keep), **parameters)
