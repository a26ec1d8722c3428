"""`geofix models`: every role that the recipe asks, its model and price, and whether it answers."""

import asyncio
import contextlib
import os
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from flows.cli.command import DONE, FAILED, Call
from flows.cli.options import command
from flows.cli.printing import print_json

GROUP = "Servers and more"


def register(app: typer.Typer) -> None:
    """The command."""
    examples = ["geofix models", "geofix models --profile production --dry-run"]
    command(app, GROUP, examples)(models)


def models(
    call: Call,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is configured and missing.")] = False,
) -> int:
    """Ask every model role of the recipe one question, with a picture and a tool, and say what works."""
    from flows.servers import offline_world
    from tasks.lake.location import Location
    from tasks.lake.state import state_folder
    from tasks.services import connect

    config = call.options().resolve()
    roles = _roles(config)
    if dry_run:
        if call.as_json:
            print_json([asdict(role) for role in roles])
        else:
            _show(roles)
        return DONE
    log = state_folder(Location.parse(config.lake)) / "offline-world.log"
    connect(config.services, os.environ, ["chat"], config.models, [role.role for role in roles])  # the keys, first
    answering = [role.role for role in roles if not role.unreachable]
    with offline_world(config, log) as (reachable, ready), _pools(reachable, answering) as reachable:
        ready()
        connection = connect(
            reachable.services, os.environ, ["chat"], reachable.models, [role.role for role in roles]
        ).chat
        by_name = {role.role: role for role in roles}
        probes = asyncio.run(_probe_all(connection, [by_name[role] for role in answering]))
        roles = _roles(reachable)  # at the addresses that were queried
    if call.as_json:
        print_json(
            [asdict(role) | {"probe": asdict(probes[role.role]) if role.role in probes else None} for role in roles]
        )
    else:
        _show(roles, probes)
    return DONE if all(probe.works(probe.checks[0]) for probe in probes.values()) else FAILED


def _pools(config: Any, roles: list[str]) -> contextlib.AbstractContextManager[Any]:
    """The pools of these roles, brought up to be queried."""
    if not config.models.pools:
        return contextlib.nullcontext(config)  # the lake need not be there, nor be opened
    from flows.pools import pools_up
    from tasks.lake import Lake

    return pools_up(config, Lake(config.lake), roles)


@dataclass(frozen=True)
class _Role:
    """A configured role, before it is queried."""

    role: str
    asked_by: str
    endpoint: str
    base_url: str
    model: str
    price: str
    price_source: str | None  # where it was read, in --json
    missing: tuple[str, ...]
    unreachable: bool = False
    embeds: bool = False


def _roles(config: Any) -> list[_Role]:
    from flows.order import STAGES, roles_of
    from flows.trained import OWN_PRICE
    from schemas.settings.models import CHAT, TRAINED, pool_endpoint

    sections_by_role: dict[str, list[str]] = {}  # a profile has roles of all recipes, whose keys this one need not have
    for section, role in roles_of(config, STAGES):
        sections_by_role.setdefault(role, []).append(section)
    embedders = {config.train.grpo.reward.embedder, config.difficulty.reward.embedder}
    if config.services.trained is not None:
        sections_by_role.setdefault(TRAINED, []).append("evaluate")
    rows = []
    for name, sections in sections_by_role.items():
        role = config.models.role(name)
        own = {CHAT: config.services.chat, TRAINED: config.services.trained}
        pool = config.models.pools.get(role.endpoint) if role.endpoint not in own else None
        endpoint = config.models.endpoints.get(role.endpoint) or own.get(role.endpoint)
        section = f"services.{role.endpoint}" if role.endpoint in own else f"models.endpoints.{role.endpoint}"
        if pool is not None:
            endpoint = pool_endpoint(pool, pool.model)
        model = role.model or (name if role.endpoint != TRAINED else "the one that is served")
        price = None if endpoint is None else role.price or endpoint.price_of(role.model or name)
        missing = []
        if endpoint is None and role.endpoint == TRAINED:
            model, price = "of the lake, served by the run", OWN_PRICE
        elif endpoint is None:
            missing.append(f"{section} names no server")
        elif endpoint.public_key is None and endpoint.key_env and not os.environ.get(endpoint.key_env):
            missing.append(f"no key in {endpoint.key_env} ({section}.key_env)")
        if price is None:
            missing.append(f"the price of '{model}' is unknown (models.roles.<role>.price)")
        words = "unknown" if price is None else f"${price.prompt:g} / ${price.completion:g}"
        if price is not None and price.as_of:
            words += f" ({price.as_of})"
        base_url = "-" if endpoint is None else "a pool on the cluster" if pool is not None else endpoint.base_url
        asking = name, ", ".join(dict.fromkeys(sections)), role.endpoint, base_url, model, words, price and price.source
        rows.append(_Role(*asking, tuple(missing), endpoint is None, name in embedders))
    return rows


async def _probe_all(connection: Any, roles: list[_Role]) -> dict[str, Any]:
    from tasks.agent.model_probe import probe, probe_embedder
    from tasks.services import Chat

    chat = Chat(connection)
    try:
        probes = await asyncio.gather(*((probe_embedder if role.embeds else probe)(chat, role.role) for role in roles))
    finally:
        await chat.close()
    return {probe.role: probe for probe in probes}


def _show(roles: list[_Role], probes: dict[str, Any] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    from tasks.agent.model_probe import CHECKS, VECTORS

    console = Console(highlight=False)
    table = Table(box=None, header_style="bold")
    checks = (*CHECKS, VECTORS) if any(role.embeds for role in roles) else CHECKS
    for column in ("role", "model", "asked by", "endpoint", "$ in / out a million", *(checks if probes else ())):
        table.add_column(column, overflow="fold")
    if probes:
        table.add_column("s", justify="right")
    for role in roles:
        cells = [role.role, role.model, role.asked_by, role.endpoint, role.price]
        probe = (probes or {}).get(role.role)
        if probe is not None:
            marks = {check: "[green]yes[/]" if probe.works(check) else "[red]no[/]" for check in probe.checks}
            cells += [marks.get(check, "-") for check in checks]
            cells.append(f"{probe.seconds:.1f}")
        table.add_row(*cells)
    console.print(table)
    for endpoint, base_url in dict.fromkeys((role.endpoint, role.base_url) for role in roles):
        console.print(f"endpoint {endpoint}: {base_url}", soft_wrap=True)
    for line in dict.fromkeys(line for role in roles for line in role.missing):
        whose = ", ".join(role.role for role in roles if line in role.missing)
        console.print(f"missing: {line}: {whose}", soft_wrap=True)
    for probe in (probes or {}).values():
        for check, why in probe.failed.items():
            console.print(f"no {check:<8} {probe.role}: {why}", soft_wrap=True, markup=False)
