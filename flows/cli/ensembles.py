"""`geofix scale` and `geofix swarm`: the evaluation of policies that ask several times before they answer."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer

from flows.cli.command import Call
from flows.cli.options import Budget, Keep, Redo, Snapshot, command
from flows.cli.stages import run_choosing, with_budget

GROUP = "Score predictions"

_Images = Annotated[
    int | None,
    typer.Option("--images", metavar="N", min=1, help="Pictures of the benchmark to answer (evaluate.max_images)."),
]
_Tools = Annotated[
    str | None,
    typer.Option("--tools", metavar="NAME,…", help="Tools offered to the policies, or `all` (evaluate.tools)."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only estimate calls to models, tokens, money and time.")]


def register(app: typer.Typer) -> None:
    """The commands."""
    command(
        app,
        GROUP,
        ["geofix scale answerer-base", "geofix scale grpo --n 8 --tools all", "geofix scale agent --dry-run"],
    )(scale)
    command(
        app,
        GROUP,
        [
            "geofix swarm answerer-base answerer-large answerer-third",
            "geofix swarm a b 'b as europe' --learn        # learn whom to elect on the train split, then evaluate",
            "geofix swarm a b c --web-search --set 'evaluate.swarm.baselines=[single, debate]'",
        ],
    )(swarm)


def scale(
    call: Call,
    policies: Annotated[
        list[str], typer.Argument(metavar="POLICY…", help="Model roles, trained:ID, or sft, cold_start, grpo.")
    ],
    n: Annotated[int, typer.Option("--n", min=2, max=64, help="Trajectories of one picture.")] = 4,
    verifier: Annotated[
        str, typer.Option("--verifier", metavar="ROLE", help="Model that reads the trajectories and answers.")
    ] = "verifier",
    images: _Images = None,
    tools: _Tools = None,
    snapshot: Snapshot = None,
    dry_run: _DryRun = False,
    budget: Budget = None,
    redo: Redo = False,
    keep: Keep = False,
) -> int:
    """Parallel test-time scaling: pass@1, verifier@N and best@N of policies on the benchmark."""
    settings = [f"evaluate.scaling.policies={_listed(policies)}", f"evaluate.scaling.n={n}"]
    settings.append(f"evaluate.scaling.verifier={verifier}")
    call = with_budget(dataclasses.replace(call, snapshot=snapshot), budget)
    return _evaluate(call, [*settings, *_common(images, tools)], dry_run, redo, keep)


def swarm(
    call: Call,
    agents: Annotated[
        list[str], typer.Argument(metavar="AGENT…", help="Model roles, or `ROLE as PERSONA`; 2 at least.")
    ],
    images: _Images = None,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="First learn on the train split whom to elect (evaluate.swarm.learning)."),
    ] = False,
    web_search: Annotated[
        bool, typer.Option("--web-search", help="Every agent searches the web before it speaks.")
    ] = False,
    snapshot: Snapshot = None,
    dry_run: _DryRun = False,
    budget: Budget = None,
    redo: Redo = False,
    keep: Keep = False,
) -> int:
    """A swarm of agents (smileGeo) beside every agent alone, a majority vote and a debate of all."""
    from tasks.recipes.evaluation import evaluation_methods

    own = evaluation_methods()["swarm"].recipe
    settings = [f"evaluate.swarm.agents={_listed(agents)}", f"evaluate.agent_recipe={own}"]
    if learn:
        settings += ["evaluate.swarm.election=learned", "train.phases=[]"]
    if web_search:
        settings.append("evaluate.swarm.web_search=true")
    call = with_budget(dataclasses.replace(call, snapshot=snapshot), budget)
    first = "train" if learn and not dry_run else "evaluate"
    return _evaluate(call, [*settings, *_common(images, None)], dry_run, redo, keep, first)


def _evaluate(
    call: Call, settings: Sequence[str], dry_run: bool, redo: bool, keep: bool, first: str = "evaluate"
) -> int:
    """Evaluate these policies and no others; what other runs evaluated stands beside them."""
    alone = ["policies=[]", "trained=false", "scaling.policies=[]", "masking.policies=[]", "swarm.agents=[]"]
    alone = [f"evaluate.{setting}" for setting in alone]
    call = dataclasses.replace(call, overrides=[*alone, *settings, *(call.overrides or [])])
    if dry_run:
        from flows.cli.dry_run import dry_run as estimate

        return estimate(call, "evaluate")
    if first != "evaluate":
        return run_choosing("pipeline", call, redo, keep, first=first, last="evaluate")
    return run_choosing("evaluate", call, redo, keep)


def _common(images: int | None, tools: str | None) -> list[str]:
    overrides = [] if images is None else [f"evaluate.max_images={images}"]
    return overrides if tools is None else [*overrides, f"evaluate.tools={_listed(tools.split(','))}"]


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(name.strip() for name in names)}]"
