"""`geofix collect --dry-run`: requests, bytes, time and budgets of a run, estimated from a sample."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.cli.progress import make_display
from flows.display import display
from flows.order import services_of
from flows.servers import offline_world
from flows.session import Session, check_before
from schemas.errors import GeofixError
from tasks.collect.estimate import KINDS, estimate
from tasks.runtime.budget_actor import shared_rate_budget
from tasks.runtime.estimate import Limit, StageEstimate, limits
from tasks.services import ServiceError
from tasks.services.meter import Tally


def dry_run(call: Call) -> int:
    """Estimate and print; no table and no picture is written."""
    config = call.options().resolve()
    check_before(config, ["collect"])
    lake = existing_lake(call)
    if lake.read("places", columns=["place_id"]).is_empty():
        raise GeofixError(f"no places are planned in lake '{lake.uri}': run `geofix plan` first")
    shown = make_display(call.quiet)
    token = display.set(shown)
    began_s = time.monotonic()
    try:
        with offline_world(config, lake.state / "offline-world.log") as (reachable, start):

            @cache  # three stages call it
            def ready() -> None:
                shown.say("asking the services about a few places ...")
                start()

            context = Session(reachable, lake, ready).context(reachable, services_of(["collect"]), ready)
            shared = context.connections.sharing(shared_rate_budget(lake, context.spread))
            context = replace(context, connections=shared)
            try:
                stages, asked = asyncio.run(estimate(reachable.collect, context))
            except ServiceError as error:
                unaccepted = context.connections.unaccepted_key(error.service, error.kind)
                if unaccepted is None:
                    raise
                raise GeofixError(f"nothing was estimated: {unaccepted}") from error
            budgets = limits(_sum(stages, lambda stage: stage.requests), context.connections)
    finally:
        display.reset(token)
        shown.close()
    took_s = time.monotonic() - began_s
    if call.as_json:
        print_json(as_json(stages, budgets, asked, took_s))
    else:
        _show(stages, budgets, asked, took_s)
    return DONE


def as_json(stages: list[StageEstimate], budgets: list[Limit], asked: Tally, took_s: float) -> dict[str, Any]:
    """The estimate for a machine."""
    requests, size = sum(stage.all_requests for stage in stages), sum(stage.all_bytes for stage in stages)
    limited = [
        asdict(one) | {"left_today": one.left_today, "minutes": one.minutes, "days": one.days} for one in budgets
    ]
    found = {
        "stages": [asdict(stage) for stage in stages],
        "total": {"requests": requests, "bytes": size, "seconds": sum(stage.seconds for stage in stages)},
        "budgets": limited,
        "asked": {"requests": asked.requests, "bytes": sum(asked.bytes.values()), "seconds": took_s},
    }
    rounded: dict[str, Any] = _rounded(found)
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, 1) if isinstance(value, float) else value


def _show(stages: list[StageEstimate], budgets: list[Limit], asked: Tally, took_s: float) -> None:
    console = Console(highlight=False)
    if not any(stage.items for stage in stages):
        console.print(
            "Nothing to do: everything planned is collected, and nothing is due to be looked at again.", soft_wrap=True
        )
        return
    table = _table("stage", "items", "requests", "bytes", "time at least")
    for stage in stages:
        if not stage.items:
            table.add_row(stage.stage, "0", "-", "-", "-", "nothing to do")
            continue
        table.add_row(
            stage.stage,
            f"{stage.items:,}",
            f"{stage.all_requests:,.0f}{_share(stage.requests_margin, stage.all_requests)}",
            f"{_size(stage.all_bytes)}{_share(stage.bytes_margin, stage.all_bytes)}",
            _time(stage.seconds),
            f"{stage.sampled} sampled; bound by {stage.bound_by}",
        )
    seconds = sum(stage.seconds for stage in stages)
    requests, size = sum(stage.all_requests for stage in stages), sum(stage.all_bytes for stage in stages)
    table.add_row("total", "", f"{requests:,.0f}", _size(size), _time(seconds), "", style="bold")
    console.print(table)
    for stage in stages:
        for note in stage.notes:
            console.print(f"  {stage.stage}: {note}", soft_wrap=True)
    console.print()
    table = _table("requests by kind", "requests", "bytes")
    sizes = _sum(stages, lambda stage: stage.bytes)
    for kind, number in _sum(stages, lambda stage: stage.requests).items():
        table.add_row(f"{kind:<19}{KINDS.get(kind, '')}", f"{number:,.0f}", _size(sizes[kind]))
    console.print(table)
    console.print()
    _show_budgets(console, budgets, seconds)
    console.print(
        f"To find out, {sum(asked.requests.values()):,} requests were made, for {_size(sum(asked.bytes.values()))} of "
        f"metadata and samples, in {took_s:.0f} s. No picture was fetched and no table written.",
        soft_wrap=True,
    )


def _show_budgets(console: Console, budgets: list[Limit], seconds: float) -> None:
    if not budgets:
        console.print("No limits are set for these services.")
        return
    table = _table("budget", "limit", "this run", "share")
    for one in budgets:
        if one.per_minute:
            share = one.requests / max(seconds / 60, one.minutes, 1.0) / one.per_minute
            limit, used = f"{one.per_minute:,.0f} a minute", f"{share:.0%} of each minute"
        else:
            share = one.requests / (one.per_day or 1)
            limit, used = f"{one.per_day:,} a day", f"{share:.0%} of a day, {one.left_today:,} left today"
        table.add_row(", ".join(one.kinds), limit, f"{one.requests:,.0f}", used)
        if one.days > 1:
            table.add_row("", "", "", f"needs {one.days} days: run again after each midnight UTC")
    console.print(table)
    console.print()


def _table(*columns: str) -> Table:
    """A table without lines: first column to the left, figures to the right, and one for remarks."""
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    table.add_column("")
    return table


def _sum(stages: list[StageEstimate], part: Callable[[StageEstimate], dict[str, float]]) -> dict[str, float]:
    """By kind, over all stages, in the order in which people read them."""
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(part(stage))
    return {kind: float(total[kind]) for kind in sorted(total, key=list(KINDS).index)}


def _share(margin: float, value: float) -> str:
    return f" ± {margin / value:.0%}" if value and margin >= 0.005 * value else ""


def _size(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,.0f} B"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
