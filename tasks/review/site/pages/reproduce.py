"""How to decide, and how to make the same again."""

import json

import polars as pl

from tasks.review.site.blocks import Block, commands, heading, table
from tasks.review.site.page import Page, Source
from tasks.review.site.words import moment


def make(source: Source) -> list[Block]:
    """Commands, table versions, and the run behind each stage."""
    name = source.snapshot_id[:12]
    runs = source.read("runs").sort("started_at").group_by("stage", maintain_order=True).last()
    decisions = source.read("decisions").filter(pl.col("snapshot_id") == source.snapshot_id).sort("decided_at")
    return [
        heading("Decide"),
        commands(
            source.command(f"approve {name}" + ("" if source.snapshot["checks_passed"] else ' --force --why "…"')),
            source.command(f'reject {name} --why "…"'),
            source.command("review --import marks.json"),
        ),
        table(
            ["decision", "by", "why", "when", "of versions"],
            [
                (row["decision"], row["reviewer"], row["why"] or "", moment(row["decided_at"]), _versions(row))
                for row in decisions.to_dicts()
            ],
            empty="No decision has been made about this snapshot.",
        ),
        heading("Look at the same tables", "a snapshot keeps these versions readable for good"),
        table(["table", "version"], sorted(source.versions.items()), ["code", "number"]),
        commands(*(source.command(f"show {table_} --version {at}") for table_, at in sorted(source.versions.items()))),
        heading("Run the same again", "the newest run of each stage; its whole configuration is in the table runs"),
        table(
            ["stage", "run", "code", "configuration", "finished"],
            [
                (
                    row["stage"],
                    row["run_id"],
                    row["code_version"] or "",
                    row["config_hash"] or "",
                    moment(row["finished_at"]),
                )
                for row in runs.to_dicts()
            ],
            ["text", "code", "code", "code", "text"],
        ),
        commands(source.command("show runs --columns stage,config_json --format json")),
    ]


def _versions(row: dict[str, str]) -> str:
    return ", ".join(f"{name} v{at}" for name, at in json.loads(row["table_versions_json"]).items())


PAGE = Page(
    id="reproduce",
    title="Decide and reproduce",
    group="Decision",
    reads=("runs", "decisions", "snapshots"),
    make=make,
    order=30,
)
