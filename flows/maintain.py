"""Maintenance of the lake as a flow: what the weekly schedule runs."""

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from flows.options import RunOptions
from tasks.lake import Lake
from tasks.lake.maintain import Done
from tasks.lake.maintain import maintain as maintain_lake


@flow(name="maintain")
def maintain(options: RunOptions | None = None, dry_run: bool = False) -> list[Done]:
    """Compact and vacuum the tables, sweep what nothing refers to."""
    config = (options or RunOptions()).resolve()
    lake = Lake(config.lake)
    done = maintain_lake(lake, config.maintain, dry_run)
    create_markdown_artifact(key="maintain", markdown=markdown(done, lake.uri), description="What maintenance freed")
    return done


def markdown(done: list[Done], lake: str) -> str:
    """What was done, as a page."""
    lines = [f"# Maintenance of `{lake}`", "", "| | | number | MB freed |", "|---|---|---:|---:|"]
    lines += [f"| {one.what} | {one.where} | {one.count:,} | {one.bytes / 1e6:,.1f} |" for one in done]
    return "\n".join(lines if done else [*lines[:2], "Nothing to do."]) + "\n"
