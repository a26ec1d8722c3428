"""`geofix pools`: the pools of served models that the settings name: what is up, and bringing up or putting away."""

import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json
from schemas.errors import InputError

if TYPE_CHECKING:
    from tasks.runtime.on_ray.model_pools import PoolPlan, PoolState

GROUP = "Servers and more"
FOREVER_S = float("inf")


class Action(StrEnum):
    """What is done with the pools."""

    show = "show"
    start = "start"
    stop = "stop"


def register(app: typer.Typer) -> None:
    """The command."""
    examples = ["geofix pools --config mine.yaml", "geofix pools start eyes --set spread.address=head:6379"]
    command(app, GROUP, examples)(pools)


def pools(
    call: Call,
    action: Annotated[
        Action, typer.Argument(help="show; start: up until stop; stop: away, even while it is queried.")
    ] = (Action.show),
    names: Annotated[list[str] | None, typer.Argument(help="Pools by name; without: all of the settings.")] = None,
) -> int:
    """Show, start or stop the pools of served models on the Ray cluster."""
    from flows.pools import pool_plan
    from schemas.settings.models import TRAINED
    from tasks.lake import Lake
    from tasks.runtime.on_ray.model_pools import check_gpus, check_python, open_keepers, pool_address
    from tasks.runtime.on_ray.watch import nodes

    config = call.options().resolve()
    settings = {name: pool for name, pool in config.models.pools.items() if name != TRAINED}
    for name in names or ():
        if name not in settings:
            raise InputError(f"models.pools names no '{name}'; it names {', '.join(settings) or 'none'}")
    lake = Lake(config.lake, read_only=True)
    plans = [pool_plan(name, pool, lake) for name, pool in settings.items() if not names or name in names]
    spread = config.spread
    if spread.address is None and action is not Action.show:
        raise InputError(
            f"spread.address names no cluster: a private Ray, and the pools on it, would end with `pools {action}`"
        )
    states: dict[str, PoolState] = {}
    if spread.address is not None and plans:
        keepers = open_keepers(spread, config.models.pool_port, f"{os.uname().nodename} by hand", FOREVER_S)
        if action is Action.start:
            check_python(plans, spread)
            check_gpus(plans, nodes())
            for plan in plans:
                keepers.bring_up(plan)
            for plan in plans:
                keepers.wait(plan, _say if not call.quiet else lambda text: None)
        elif action is Action.stop:
            for plan in plans:
                keepers.stop(plan)
        states = keepers.states(plans)
    rows = [
        _row(
            config, plan, states.get(plan.application), pool_address(plan.application, spread, config.models.pool_port)
        )
        for plan in plans
    ]
    if call.as_json:
        print_json([asdict(row) for row in rows])
    else:
        _show(rows)
    return DONE


@dataclass(frozen=True)
class _Row:
    """A pool, as it is shown."""

    pool: str
    model: str
    engine: str
    gpus: float  # of a replica
    replicas: str
    roles: tuple[str, ...]
    state: str
    address: str


def _row(config: Any, plan: "PoolPlan", state: "PoolState | None", address: str) -> _Row:
    least, most = plan.settings.replicas
    running = state.replicas.get("RUNNING", 0) if state else 0
    roles = tuple(name for name, role in config.models.roles.items() if role.endpoint == plan.name)
    words = "not up" if state is None else state.status.lower()
    wanted = f"{least}" if least == most else f"{least}-{most}"
    return _Row(
        plan.name, plan.model, plan.settings.engine, plan.settings.gpus, f"{running} of {wanted}", roles, words, address
    )


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _show(rows: list[_Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not rows:
        console.print("the settings name no pool (models.pools)")
        return
    table = Table(box=None, header_style="bold")
    for column in ("pool", "model", "engine", "GPUs", "replicas", "roles", "state"):
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (row.pool, row.model, row.engine, f"{row.gpus:g}", row.replicas, ", ".join(row.roles) or "-", row.state)
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        if row.state == "running":
            console.print(f"{row.pool}: {row.address}", soft_wrap=True)
