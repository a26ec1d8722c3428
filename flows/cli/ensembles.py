"""`geofix scale` and `geofix swarm`: the evaluation of policies that ask several times before they answer."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.command import DONE, Call, UsageError
from flows.cli.options import Budget, Keep, Redo, Snapshot, command
from flows.cli.printing import print_json
from flows.cli.stages import with_budget

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
            "geofix swarm a b c --set evaluate.split=train    # answers to learn from",
            "geofix swarm a b c --learn election.pt --from train",
            "geofix swarm a b c --network election.pt",
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
    agents: Annotated[list[str], typer.Argument(metavar="ROLE…", help="Model roles of the agents, 2 at least.")],
    images: _Images = None,
    network: Annotated[
        Path | None,
        typer.Option("--network", metavar="FILE", help="Elect by what was learned (evaluate.swarm.network)."),
    ] = None,
    learn: Annotated[
        Path | None,
        typer.Option(
            "--learn", metavar="FILE", help="Learn who answers and reviews from answers in the lake; ask none."
        ),
    ] = None,
    split: Annotated[
        str, typer.Option("--from", metavar="SPLIT", help="For --learn: pictures to learn from: train or validation.")
    ] = "train",
    snapshot: Snapshot = None,
    dry_run: _DryRun = False,
    budget: Budget = None,
    redo: Redo = False,
    keep: Keep = False,
) -> int:
    """A swarm of agents (smileGeo) beside every agent alone, a majority vote and a debate of all."""
    if learn is not None:
        return _learn(call, agents, split, learn)
    settings = [f"evaluate.swarm.agents={_listed(agents)}"]
    if network is not None:
        settings.append(f"evaluate.swarm.network={network}")
    call = with_budget(dataclasses.replace(call, snapshot=snapshot), budget)
    return _evaluate(call, [*settings, *_common(images, None)], dry_run, redo, keep)


def _evaluate(call: Call, settings: Sequence[str], dry_run: bool, redo: bool, keep: bool) -> int:
    """Evaluate these policies and no others; what other runs evaluated stands beside them."""
    if redo and keep:
        raise UsageError("--redo and --keep exclude each other; give one of them")
    choice = ["run.redo=always"] if redo else ["run.redo=never"] if keep else []
    alone = ["policies=[]", "trained=false", "scaling.policies=[]", "masking.policies=[]", "swarm.agents=[]"]
    alone = [f"evaluate.{setting}" for setting in alone]
    call = dataclasses.replace(call, overrides=[*choice, *alone, *settings, *(call.overrides or [])])
    if dry_run:
        from flows.cli.dry_run import dry_run as estimate

        return estimate(call, "evaluate")
    from flows.cli.running import run_flow

    return run_flow("evaluate", call)


def _learn(call: Call, agents: Sequence[str], split: str, out: Path) -> int:
    from flows.cli.lake import existing_lake
    from tasks.recipes.evaluation import evaluation_methods

    if split not in ("train", "validation"):
        raise UsageError(f"--from {split}: learn from train or validation; the benchmark is for measuring")
    if len(set(agents)) < 2:
        raise UsageError("a swarm needs two different agents at least")
    if not out.parent.is_dir():
        raise UsageError(f"--learn {out}: there is no folder {out.parent}")
    config = call.options().resolve()
    method: Any = evaluation_methods()["swarm"]
    found = method.learn(existing_lake(call), agents, split, config.evaluate.swarm.same_km, out)
    if call.as_json:
        print_json(dataclasses.asdict(found) | {"file": str(out)})
    elif not call.quiet:
        print(
            f"learned from {found.pictures:,} pictures of {split}; loss {found.first_loss:.4f} to {found.last_loss:.4f}"
        )
        for agent, share in found.right.items():
            print(f"  {agent:<28} right on {100 * share:5.1f} % of them")
        print(f"network  {out}")
    return DONE


def _common(images: int | None, tools: str | None) -> list[str]:
    found = [] if images is None else [f"evaluate.max_images={images}"]
    return found if tools is None else [*found, f"evaluate.tools={_listed(tools.split(','))}"]


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(name.strip() for name in names)}]"
