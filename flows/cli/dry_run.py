"""`geofix collect --dry-run`: what a run would send, receive and take, before it does."""

import asyncio
import math
import time
from dataclasses import replace
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.cli.progress import make_display
from flows.cli.starts import usual_start_s
from flows.display import display
from flows.order import services_of
from flows.servers import offline_world
from flows.session import Session, check_before
from schemas.errors import GeofixError
from tasks.collect.forecast.budgets import Limit, limits
from tasks.collect.forecast.estimate import Estimate, estimate
from tasks.collect.forecast.sampling import Figure
from tasks.runtime.budget_actor import shared_rate_budget
from tasks.services import ServiceError

# What the kinds of requests are to a person.
KINDS = {
    "search": "searches by box",
    "entity": "details and lists of pictures",
    "tiles": "vector tiles",
    "picture": "pictures from their host",
    "stac": "searches for scenes",
    "signing": "signatures",
    "asset": "parts of scenes",
}


def dry_run(call: Call) -> int:
    """Estimate, and say so; no table and no picture is written."""
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
            servers_s = 0.0

            @cache  # once is enough to hear it
            def ready() -> None:
                nonlocal servers_s
                shown.say("asking the services about a few places ...")
                start_s = time.monotonic()
                start()
                servers_s = time.monotonic() - start_s

            context = Session(reachable, lake, ready).context(reachable, services_of(["collect"]), ready)
            shared = context.connections.sharing(shared_rate_budget(lake, context.spread))
            context = replace(context, connections=shared)
            try:
                found = asyncio.run(estimate(reachable.collect, context))
            except ServiceError as error:
                unaccepted = context.connections.unaccepted_key(error.service, error.kind)
                if unaccepted is None:
                    raise
                raise GeofixError(f"nothing was estimated: {unaccepted}") from error
            budgets = limits(_kinds(found), context)
    finally:
        display.reset(token)
        shown.close()
    took_s = time.monotonic() - began_s
    start_s = usual_start_s(lake, "collect", servers_s) if any(stage.items for stage in found.stages) else 0.0
    if call.as_json:
        print_json(as_json(found, budgets, took_s, start_s))
    else:
        _show(found, budgets, took_s, start_s)
    return DONE


def as_json(found: Estimate, budgets: list[Limit], took_s: float, start_s: float = 0.0) -> dict[str, Any]:
    """The estimate for a machine."""
    return {
        "stages": [
            {
                "stage": stage.stage,
                "items": stage.items,
                "sampled": stage.sampled,
                "requests": _whole(stage.requests),
                "bytes": _whole(stage.bytes),
                "seconds": round(stage.seconds, 1),
                "bound_by": stage.bound_by,
                "kinds": {kind: {"requests": round(n), "bytes": round(b)} for kind, (n, b) in stage.kinds.items()},
                "notes": stage.notes,
            }
            for stage in found.stages
        ],
        "starting": {"seconds": round(start_s, 1)},
        "total": {
            "requests": _whole(_sum(stage.requests for stage in found.stages)),
            "bytes": _whole(_sum(stage.bytes for stage in found.stages)),
            "seconds": round(start_s + sum(stage.seconds for stage in found.stages), 1),
        },
        "budgets": [
            {
                "service": one.service,
                "kinds": list(one.kinds),
                "requests": round(one.requests),
                "per_minute": one.per_minute,
                "per_day": one.per_day,
                "used_today": one.used_today,
                "left_today": one.left_today,
                "minutes": round(one.minutes, 2),
                "days": one.days,
            }
            for one in budgets
        ],
        "asked": {
            "requests": dict(found.asked.requests),
            "bytes": found.asked.total_bytes,
            "seconds": round(took_s, 1),
        },
    }


def _show(found: Estimate, budgets: list[Limit], took_s: float, start_s: float) -> None:
    console = Console(highlight=False)
    table = Table(box=None, header_style="bold")
    for column in ("stage", "items", "requests", "bytes", "time", ""):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    for stage in found.stages:
        if stage.items == 0:
            table.add_row(stage.stage, "0", "-", "-", "-", "nothing to do")
            continue
        how = f"{stage.sampled} sampled" if stage.sampled < stage.items else "all looked at"
        table.add_row(
            stage.stage,
            f"{stage.items:,}",
            _range(stage.requests),
            _range(stage.bytes, _size),
            _time(stage.seconds),
            how,
        )
    requests, size = (_sum(figures) for figures in zip(*((s.requests, s.bytes) for s in found.stages), strict=True))
    seconds = sum(stage.seconds for stage in found.stages)
    table.add_row("starting, ending", "", "", "", _time(start_s), "")
    table.add_row("total", "", _range(requests), _range(size, _size), _time(seconds + start_s), "", style="bold")
    if not any(stage.items for stage in found.stages):
        console.print(
            "Nothing to do: everything planned is collected, and nothing is due to be looked at again.", soft_wrap=True
        )
        return
    console.print(table)
    for stage in found.stages:
        for note in stage.notes:
            console.print(f"  {stage.stage}: {note}", soft_wrap=True)
    console.print()
    _show_kinds(console, found)
    _show_budgets(console, budgets, seconds)
    console.print(
        f"To find out, {found.asked.total_requests:,} requests were made, for {_size(found.asked.total_bytes)} of "
        f"metadata and samples, in {took_s:.0f} s. No picture was fetched and no table written.",
        soft_wrap=True,
    )


def _show_kinds(console: Console, found: Estimate) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("requests by kind", "requests", "bytes"):
        table.add_column(column, justify="left" if column == "requests by kind" else "right")
    for kind, (requests, size) in _kinds(found).items():
        table.add_row(f"{kind:<9}{KINDS.get(kind, '')}", f"{round(requests):,}", _size(size))
    if table.row_count:
        console.print(table)
        console.print()


def _show_budgets(console: Console, budgets: list[Limit], seconds: float) -> None:
    if not budgets:
        console.print("No limits are set for these services.")
        return
    table = Table(box=None, header_style="bold")
    for column in ("budget", "limit", "this run", "share"):
        table.add_column(column, justify="left" if column == "budget" else "right")
    for one in budgets:
        name = f"{one.service} {', '.join(one.kinds)}"
        if one.per_minute:
            share = one.requests / max(seconds / 60, one.minutes, 1.0) / one.per_minute
            table.add_row(
                name, f"{one.per_minute:,.0f} a minute", f"{one.requests:,.0f}", f"{share:.0%} of each minute"
            )
        if one.per_day:
            share = one.requests / one.per_day
            left = f"{share:.0%} of a day, {one.left_today:,} left today"
            table.add_row(name, f"{one.per_day:,} a day", f"{one.requests:,.0f}", left)
            if one.days > 1:
                table.add_row("", "", "", f"needs {one.days} days: run again after each midnight UTC")
    console.print(table)
    console.print()


def _kinds(found: Estimate) -> dict[str, tuple[float, float]]:
    """(requests, bytes) by kind, in the order a person reads them."""
    every = {kind: (0.0, 0.0) for kind in KINDS if any(kind in stage.kinds for stage in found.stages)}
    for stage in found.stages:
        for kind, (requests, size) in stage.kinds.items():
            before = every.get(kind, (0.0, 0.0))
            every[kind] = (before[0] + requests, before[1] + size)
    return every


def _sum(figures: Any) -> Figure:
    return sum(figures, Figure())


def _whole(figure: Figure) -> dict[str, int | None]:
    high = None if math.isinf(figure.high) else round(figure.high)
    return {"value": round(figure.value), "low": round(figure.low), "high": high}


def _range(figure: Figure, show: Any = lambda value: f"{round(value):,}") -> str:
    around = figure.high - figure.value
    if figure.value == 0 or around < 0.005 * figure.value:
        return str(show(figure.value))
    share = "?" if math.isinf(around) else f"{around / figure.value:.0%}"
    return f"{show(figure.value)} ± {share}"


def _size(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,.0f} B"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
