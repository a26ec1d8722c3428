"""`geofix locate` and `geofix mcp`: an agent on pictures of your own, and its tools for any other agent."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import DONE, FAILED, Call
from flows.cli.options import Snapshot, command
from flows.cli.printing import print_json
from schemas.extras import require_extras
from schemas.recipes import default_recipe

GROUP = "Use an agent"

_Model = Annotated[
    str,
    typer.Option("--model", metavar="ROLE", help="Model role: agent, trained, trained:ID or one under models.roles."),
]


def register(app: typer.Typer) -> None:
    """The commands."""
    examples = ["geofix locate street.jpg --model trained:finds-2", "geofix locate *.jpg --model trained --json"]
    command(app, GROUP, examples)(locate)
    shown = [
        "geofix trajectories --as trl --out trajectories.parquet",
        f"geofix trajectories --as tagged --recipe {default_recipe()}",
    ]
    command(app, GROUP, shown)(trajectories)
    arguments = [
        f"geofix verl --recipe {default_recipe()}",
        "geofix verl --model /models/Qwen2.5-VL-7B-Instruct --out /data/verl",
    ]
    command(app, GROUP, arguments)(verl)
    command(app, GROUP, ["geofix mcp", f"geofix mcp street.jpg --tools {default_recipe()}"])(mcp)


def locate(
    call: Call,
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE…", help="JPEG or PNG files.")],
    model: _Model = "agent",
    page: Annotated[
        Path | None,
        typer.Option(
            "--page", metavar="FILE", show_default="LAKE/reports/locate.html", help="Where the page is written."
        ),
    ] = None,
) -> int:
    """Ask an agent where pictures were taken; shows its thoughts, calls and answer, and writes a page."""
    from flows.agents import agent_session
    from flows.cli.locating import Terminal, locate_all
    from tasks.agent.page import page_html
    from tasks.lake import Lake
    from tasks.recipes.recipe import RECIPES

    config = call.options().resolve()
    recipe = RECIPES[config.synthesize.recipe]
    terminal = Terminal(silent=call.quiet or call.as_json)
    with agent_session(config, model) as session:
        located = asyncio.run(locate_all(session, pictures, model, recipe, terminal))
    if page is not None:
        page.write_text(page_html(located), encoding="utf-8")
    else:
        blobs, key = Lake(config.lake).blobs, "reports/locate.html"
        blobs.put(key, page_html(located).encode())
    if call.as_json:
        print_json([result.as_row() for result in located])
    elif not call.quiet:
        print(f"page  {page or blobs.uri(key)}")
    return DONE if all(result.answered or result.abstains for result in located) else FAILED


def mcp(
    call: Call,
    picture: Annotated[Path | None, typer.Argument(metavar="PICTURE", help="The picture that can be zoomed.")] = None,
    tools: Annotated[
        str, typer.Option("--tools", metavar="RECIPE", help="Whose tools: all, or those of one recipe.")
    ] = "all",
) -> int:
    """Serve the agent's tools over the Model Context Protocol, on standard input and output."""
    from flows.agents import agent_session
    from flows.cli.command import UsageError
    from flows.cli.locating import read_picture
    from tasks.agent.mcp_server import build_server, serve_stdio
    from tasks.agent.tools import TOOLS
    from tasks.recipes.recipe import RECIPES
    from tasks.runtime.items.identity import code_version

    offered = {name: recipe.prompt.tools for name, recipe in RECIPES.items()}
    choices = {"all": tuple(TOOLS)} | {name: some for name, some in offered.items() if some}
    if tools not in choices:
        raise UsageError(f"--tools: there is no '{tools}'; there are {', '.join(choices)}")
    config = call.options().resolve()
    shown = read_picture(picture, config) if picture is not None else None
    with agent_session(config) as session:
        asyncio.run(serve_stdio(build_server(session.tools, shown, choices[tools], code_version())))
    return DONE


def trajectories(
    call: Call,
    form: Annotated[str, typer.Option("--as", metavar="FORM", help="trl or tagged.")] = "trl",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", show_default="RECIPE-FORM", help="The file to write.")
    ] = None,
) -> int:
    """Write a recipe's kept trajectories to a file that TRL reads, pictures and licences included."""
    from flows.cli.lake import existing_lake
    from tasks.synthesize.exports import export

    recipe = call.options().resolve().synthesize.recipe
    path = out or Path(f"{recipe}-{form}.{'jsonl' if form == 'tagged' else 'parquet'}")
    written = export(existing_lake(call, read_only=True), recipe, form, path)
    if call.as_json:
        print_json({"file": str(path), "trajectories": written, "form": form, "recipe": recipe})
    elif not call.quiet:
        print(f"{written:,} kept trajectories of {recipe} as {form} in {path}")
    return DONE


def verl(
    call: Call,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FOLDER", show_default="what GRPO starts from", help="Model to start from."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", show_default="RECIPE-verl", help="A new folder.")
    ] = None,
    snapshot: Snapshot = None,
) -> int:
    """Write a folder for GRPO with verl on a large cluster: questions, tools, reward and launch configuration."""
    require_extras("geofix verl", "train")
    from flows.cli.lake import existing_lake
    from tasks.runtime.snapshots import approved_snapshot
    from tasks.train.verl_folder import start_of, write_verl_folder

    config = call.options().resolve()
    lake = existing_lake(call, read_only=True)
    chosen = approved_snapshot(lake, snapshot)
    folder = out or Path(f"{config.train.recipe}-verl")
    done = write_verl_folder(lake, config, folder, model or start_of(lake, config.train, chosen), chosen)
    if call.as_json:
        print_json({**dataclasses.asdict(done), "folder": str(done.folder)})
    elif not call.quiet:
        print(f"{done.train:,} questions and {done.validation:,} for validation, {done.tools} tools")
        print(f"{done.folder / 'launch.sh'} starts verl on it")
    return DONE
