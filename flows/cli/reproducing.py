"""`geofix reproduce`: a paper's table, ours beside the printed figures."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command import DONE, FAILED_ROWS, Call, UsageError
from flows.cli.options import Budget, Keep, Redo, Snapshot, command
from flows.cli.printing import print_json
from flows.cli.stages import with_budget, with_choice
from schemas.recipes import default_recipe

if TYPE_CHECKING:
    from schemas.paper_tables import PaperTable

GROUP = "Score predictions"


def register(app: typer.Typer) -> None:
    """The command."""
    paper = default_recipe()
    examples = [
        "geofix reproduce --list",
        f"geofix reproduce {paper} --table 3 --lake demo --images 20",
        f"geofix reproduce {paper} --table 4 --places 500 --base /models/Qwen2.5-VL-7B-Instruct",
        f"geofix reproduce {paper} --table 9 --model InternVL3-8B=answerer-large --dry-run",
    ]
    command(app, GROUP, examples, without=("recipe",))(reproduce)


def reproduce(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The paper's recipe; --list names them.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="N", help="The table to run.")] = None,
    figure: Annotated[str | None, typer.Option("--figure", metavar="N", help="The figure to run.")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Name every table and figure, and whether it can be run.")
    ] = False,
    places: Annotated[
        int | None,
        typer.Option("--places", metavar="N", min=1, help="Plan, collect and curate these first (plan.places)."),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", metavar="MODEL", help="The model that rows train (train.base).")
    ] = None,
    images: Annotated[
        int | None, typer.Option("--images", metavar="N", min=1, help="Pictures to answer (evaluate.max_images).")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="ROW=ROLE", help="The role that answers for a row, or for every `base`; repeatable."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only name the rows and their settings.")] = False,
    snapshot: Snapshot = None,
    budget: Budget = None,
    redo: Redo = False,
    keep: Keep = False,
) -> int:
    """Run the rows of a paper's table, and print ours beside its figures, with intervals and what differs."""
    from schemas.paper_tables import load_paper, papers

    if listed:
        return _list(call, name)
    if name is None or (table is None) == (figure is None):
        raise UsageError("give a paper and one --table N or --figure N; `geofix reproduce --list` names them")
    if name not in papers():
        raise UsageError(f"there is no paper '{name}'; there are {', '.join(papers())}")
    wanted = load_paper(name).find("table" if table else "figure", table or figure or "")
    if why := _why_not(name, wanted):
        raise UsageError(f"{wanted.label} of {name} cannot be run: {why}")
    roles = _roles(model or [])
    sizes = [] if base is None else [f"train.base={base}"]
    sizes += [] if images is None else [f"evaluate.max_images={images}"]
    call = with_budget(dataclasses.replace(call, recipe=name, snapshot=snapshot), budget)
    # A table is the paper's also where the profile has `quality: ours`, unless the user says so.
    overrides = ["quality=paper", *(call.overrides or []), *sizes]
    call = with_choice(dataclasses.replace(call, overrides=overrides), redo, keep)
    if dry_run:
        return _rows(call, wanted)
    return _run(call, name, wanted, roles, places)


def _run(call: Call, name: str, wanted: "PaperTable", roles: dict[str, str], places: int | None) -> int:
    from flows.cli.running import prefect_ready, shown_progress

    with shown_progress(call) as shown:
        from schemas.paper_tables import load_paper
        from tasks.lake import Lake

        config = call.options().resolve()
        lake = Lake(config.lake)
        with prefect_ready(lake, shown, call.debug, config.flows.record_commands):
            from flows.reproduce import Sweep

            sweep = Sweep(name, load_paper(name), wanted, call.options(), roles, places)
            reproduction = sweep.run()
    if call.as_json:
        print_json(reproduction.as_json())
    elif not call.quiet:
        print(f"\n{reproduction.plain()}\n\nstored  {lake.blobs.uri(f'{sweep.folder}/table.md')}")
    return FAILED_ROWS if sweep.failed else DONE


def _roles(pairs: list[str]) -> dict[str, str]:
    roles = {}
    for text in pairs:
        row, sign, role = text.rpartition("=")
        if not sign or not row or not role:
            raise UsageError(f"--model {text}: must look like ROW=ROLE, such as 'GPT-5=answerer-large'")
        roles[row.strip()] = role.strip()
    return roles


def _why_not(name: str, table: "PaperTable") -> str | None:
    from schemas.paper_tables import is_recipe

    return table.cannot or (None if is_recipe(name) else "the recipe has no settings.yaml yet")


def _list(call: Call, name: str | None) -> int:
    from schemas.paper_tables import load_paper, papers

    rows: list[dict[str, Any]] = [
        {
            "paper": paper,
            "kind": table.kind,
            "number": table.number,
            "title": table.title,
            "cannot": _why_not(paper, table),
        }
        for paper in papers()
        if name in (None, paper)
        for table in load_paper(paper).tables
    ]
    if not rows:
        raise UsageError(f"there is no paper '{name}'; there are {', '.join(papers())}")
    if call.as_json:
        print_json(rows)
        return DONE
    for paper_name in dict.fromkeys(row["paper"] for row in rows):
        print(f"{paper_name}: {load_paper(paper_name).title}")
        for row in (row for row in rows if row["paper"] == paper_name):
            runs = "runs" if row["cannot"] is None else "–"
            why = f" ({row['cannot']})" if row["cannot"] else ""
            print(f"  {row['kind']:<6} {row['number']:<8} {runs:<5} {row['title']}{why}")
    print(f"{sum(row['cannot'] is None for row in rows)} of {len(rows)} can be run")
    return DONE


def _rows(call: Call, wanted: "PaperTable") -> int:
    config = call.options().resolve()
    rows: list[dict[str, Any]] = [
        {
            "row": row.name,
            "policy": row.policy or (row.answer if row.answer else "--model" if row.role else "printed only"),
            "answer": row.answer,
            "settings": {**wanted.settings, **row.settings, **row.by_profile.get(config.profile, {})},
            "shares": row.shares,
        }
        for row in wanted.rows
    ]
    if call.as_json:
        print_json(rows)
        return DONE
    print(f"{wanted.label}: {wanted.title}; base {config.train.base}, quality {config.quality}, lake {config.lake}")
    for row in rows:
        facts = [f"{name}={value}" for name, value in row["settings"].items()]
        facts += [f"{name}={100 * share:g} %" for name, share in row["shares"].items()]
        of = f" {row['answer']}" if row["answer"] and row["answer"] != row["policy"] else ""
        print(f"  {row['row']:<32} {row['policy']}{of}  {'; '.join(facts)}")
    return DONE
