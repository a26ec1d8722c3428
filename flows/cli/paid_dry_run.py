"""`geofix PART --dry-run` of a part that asks models: calls, tokens, money and time, estimated from a sample."""

import asyncio
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.cli.progress import make_display
from flows.display import display
from flows.order import services_of, steps_of
from flows.servers import offline_world
from flows.session import Session, check_before
from schemas.config import Config, section_of
from schemas.messages import Usage, money
from tasks.runtime.call_estimate import CallEstimate, estimate_calls
from tasks.runtime.calls import spent_usd
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import Context, Stage


def dry_run(call: Call, part: str) -> int:
    """Estimate and print; rows are written to the table `calls` alone."""
    config = call.options().resolve()
    check_before(config, [part])
    lake = existing_lake(call)
    shown = make_display(call.quiet)
    token = display.set(shown)
    try:
        with offline_world(config, lake.state / "offline-world.log") as (reachable, ready):
            session = Session(reachable, lake, ready)
            if any(stage.snapshot for stage in steps_of(part)):
                session.snapshot = approved_snapshot(lake, call.snapshot)
            context = session.context(reachable, services_of([part]), ready, stages=[part])
            shown.phase("doing a few items to find out")
            found = asyncio.run(_estimates(reachable, part, context))
    finally:
        display.reset(token)
        shown.close()
    spent = spent_usd(lake)
    if call.as_json:
        print_json(as_json(found, spent, config.models.budget_usd))
    else:
        _show(found, spent, config.models.budget_usd)
    return DONE


async def _estimates(config: Config, part: str, context: Context) -> list[CallEstimate]:
    return [
        await estimate_calls(stage, section_of(config, stage.section or part), context)
        for stage in steps_of(part)
        if isinstance(stage, Stage) and "chat" in stage.services
    ]


def as_json(found: list[CallEstimate], spent: float, budget: float | None) -> dict[str, Any]:
    """The estimate for a machine."""
    total, paid = _total(found), sum((one.paid for one in found), start=Usage())
    return {
        "stages": [asdict(one) for one in found],
        "total": asdict(total) | {"seconds": sum(one.seconds for one in found)},
        "paid_to_find_out_usd": paid.cost_usd,
        "in_all_usd": None if total.cost_usd is None or paid.cost_usd is None else total.cost_usd + paid.cost_usd,
        "spent_usd": spent,
        "budget_usd": budget,
    }


def _total(found: list[CallEstimate]) -> Usage:
    costs = [one.cost_usd for one in found]
    return Usage(
        round(sum(one.prompt_tokens for one in found)),
        round(sum(one.completion_tokens for one in found)),
        None if any(cost is None for cost in costs) else sum(cost or 0.0 for cost in costs),
        round(sum(one.calls for one in found)),
    )


def _show(found: list[CallEstimate], spent: float, budget: float | None) -> None:
    console = Console(highlight=False)
    table = Table(box=None, header_style="bold")
    for column in ("stage", "items", "calls", "tokens in", "tokens out", "money", "time at least", ""):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    for one in found:
        about = f"{one.sampled} sampled" if one.items else "nothing to do"
        table.add_row(
            one.stage,
            f"{one.items:,}",
            f"{one.calls:,.0f}",
            f"{one.prompt_tokens:,.0f}",
            f"{one.completion_tokens:,.0f}",
            money(one.cost_usd) + (f" ± {one.margin_usd:.4f}" if one.cost_usd and one.margin_usd else ""),
            _time(one.seconds),
            about,
        )
    console.print(table)
    for one in found:
        for note in one.notes:
            console.print(f"  {one.stage}: {note}", soft_wrap=True)
    total, paid = _total(found), sum((one.paid for one in found), start=Usage())
    if total.cost_usd is not None and paid.cost_usd:
        console.print(f"In all {money(paid.cost_usd + total.cost_usd)}, with what finding out took.", soft_wrap=True)
    console.print(
        f"To find out, {paid.requests:,} requests were sent to models ({money(paid.cost_usd)}); their replies are in "
        "the table `calls`, and the run does not pay for them again.",
        soft_wrap=True,
    )
    console.print(f"Spent on this lake so far: {money(spent)}.", soft_wrap=True)
    if total.cost_usd is None:
        console.print("A price is not known: set models.roles.<role>.price to see the money.", soft_wrap=True)
    elif budget is not None:
        enough = "is enough" if spent + total.cost_usd <= budget else "is not enough: the run would stop before it"
        console.print(f"The budget of {money(budget)} {enough}.", soft_wrap=True)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
