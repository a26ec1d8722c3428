"""The application: every group of commands registered, and the entry point."""

import os
from typing import Annotated

import typer

from flows.cli import (
    agent_commands,
    benchmarks,
    doctor,
    ensembles,
    evaluation,
    lake_commands,
    models,
    pools,
    reproducing,
    review_commands,
    servers,
    serving,
    stages,
)
from flows.cli.options import Group

ABOUT = "Open street-view and satellite imagery in, a trained geo-localization agent out."

app = typer.Typer(
    name="geofix",
    help=ABOUT,
    epilog="`geofix COMMAND --help` explains a command, with examples. `geofix settings` lists what can be set.",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tasks.runtime.items.identity import code_version

        print(code_version())
        raise typer.Exit


@app.callback()
def geofix(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _module in (
    stages,
    review_commands,
    lake_commands,
    evaluation,
    benchmarks,
    ensembles,
    reproducing,
    agent_commands,
    servers,
    serving,
    models,
    pools,
    doctor,
):
    _module.register(app)


@app.command(rich_help_panel=servers.GROUP)
def version() -> None:
    """Print the version of geofix."""
    _print_version(True)


def main() -> None:
    """Entry point of the command."""
    # For servers and workers, which inherit it: glibc gives every thread a heap of its own, and what pictures and
    # models leave behind in each is not handed back. Measured on the offline world's server: 1.8 GB become 1.3.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "65536")
    app()
