"""Finished items that other settings or other code would pay for again: said, and above a threshold requested."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from schemas.errors import StageRefused
from schemas.settings.run import RunSettings
from tasks.runtime.items.ledger import Ledger, RunPlan

logger = logging.getLogger("geofix.stage")


@dataclass(frozen=True)
class Redo:
    """What a stage is about to do again. The sums are what it took the last time; none where no run tells."""

    stage: str
    new: int
    redone: int  # finished with other settings or code
    changed: int  # finished from another input, whatever the settings
    revived: int
    requests: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __str__(self) -> str:
        paid = [
            f"{self.requests:,} requests" if self.requests else "",
            f"{self.tokens:,} tokens" if self.tokens else "",
            f"${self.cost_usd:,.2f}" if self.cost_usd else "",
        ]
        took = ", ".join(filter(None, paid))
        return f"{self.stage}: {self.redone:,} finished items would be done again, because settings or code changed" + (
            f" (they took {took})" if took else ""
        )


def items_to_run(
    plan: RunPlan, ledger: Ledger, paid: bool, settings: RunSettings, confirm: Callable[[Redo], bool]
) -> pl.DataFrame:
    """The items to do now: all of the plan, or without those that are not to be redone; StageRefused to ask.

    Only stages that pay for an item (with requests to a service) count here, and only where an item was finished
    with other settings or code: new input is expected to be paid for.
    """
    todo = plan.todo
    if not paid or not len(plan.redone):
        return todo
    made = ledger.made_by(plan.redone)
    other = made.join(made.filter(pl.col("config_hash") == ledger.config_hash), on="item_id", how="anti")
    redone = other["item_id"].unique()
    if not len(redone):
        return todo
    if settings.redo == "never":
        return todo.filter(~pl.col("id").is_in(redone.implode()))
    redo = _redo(plan, ledger, other, len(redone))
    if settings.redo == "ask" and len(redone) > settings.redo_ask_above and not confirm(redo):
        raise StageRefused(
            f"{redo}; run again with --redo to redo them, or with --keep to leave them as they are "
            "(run.redo=always or never)"
        )
    logger.warning("%s; the old results are kept, and used again when the settings return", redo)
    return todo


def _redo(plan: RunPlan, ledger: Ledger, made: pl.DataFrame, redone: int) -> Redo:
    last = made.sort("written_at").unique("item_id", keep="last").drop_nulls("config_hash")
    items = pl.max_horizontal(pl.col("kept") + pl.col("rejected"), 1)
    shares = last.select(
        requests=(pl.col("requests") / items).sum(),
        tokens=((pl.col("prompt_tokens") + pl.col("completion_tokens")) / items).sum(),
        cost_usd=(pl.col("cost_usd") / items).sum(),
        unpriced=pl.col("cost_usd").is_null().any(),
    ).row(0, named=True)
    known = last.height > 0
    return Redo(
        ledger.stage,
        new=plan.todo.height - len(plan.redone),
        redone=redone,
        changed=len(plan.redone) - redone,
        revived=plan.revived,
        requests=round(shares["requests"]) if known else None,
        tokens=round(shares["tokens"]) if known else None,
        cost_usd=shares["cost_usd"] if known and not shares["unpriced"] else None,
    )
