"""Commands that start and stop servers: up, down, offline."""

import shlex
from typing import Annotated

import typer

from flows.cli import base
from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json, program

GROUP = "Servers and more"


def register(app: typer.Typer) -> None:
    """The commands."""
    base.register(app)
    command(app, GROUP, ["geofix up", "geofix up --lake /data/lake --profile production --port 4300"])(up)
    command(app, GROUP, ["geofix down", "geofix down --lake /data/lake"])(down)
    # Its options are those of the server, which also explains them.
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        rich_help_panel=GROUP,
    )(offline)


def up(
    call: Call,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, show_default="4200, or any that is free", help="Of the Prefect server."),
    ] = None,
) -> int:
    """Start a Prefect server, a worker, the schedules and the offline world, in the background."""
    from flows import background
    from flows.prefect_auth import secret_file
    from tasks.lake import Lake

    options = call.options()
    lake = Lake(options.resolve().lake)
    state = background.up(options, lake, port)
    if call.as_json:
        print_json(state)
        return DONE
    print(f"Prefect server   {state['api'].removesuffix('/api')}  (runs, artifacts, schedules)")
    for name, schedule in state["deployments"].items():
        print(f"deployment       {name:<20} {schedule}")
    print(f"logs             {background.state_file(lake).parent}")
    print(f"password         in {secret_file(lake)}")
    print(f"stop with        {program()} down" + (f" --lake {shlex.quote(call.lake)}" if call.lake else ""))
    return DONE


def down(call: Call) -> int:
    """Stop what `geofix up` started."""
    from flows import background
    from tasks.lake import Lake

    stopped, ended = background.down(Lake(call.options().resolve().lake))
    if call.as_json:
        print_json({"stopped": stopped, "not_running": ended})
        return DONE
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing is running for this lake")
    if ended:
        print(f"not running any more: {', '.join(ended)}")
    return DONE


def offline(context: typer.Context) -> None:
    """Serve the offline world on loopback."""
    from infra.offline.server import main as serve

    raise SystemExit(serve(context.args))
