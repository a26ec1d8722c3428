"""Maintenance of the lake as a flow: what the weekly schedule runs."""

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from flows.options import RunOptions
from flows.session import open_session
from tasks.lake import Commit
from tasks.lake.maintain import Done
from tasks.lake.maintain import maintain as maintain_lake
from tasks.runtime.calls import commit_calls
from tasks.runtime.items.identity import new_run_id
from tasks.runtime.items.withdrawals import STAGE, end_withdrawn


@flow(name="maintain")
def maintain(options: RunOptions = RunOptions(), dry_run: bool = False) -> list[Done]:
    """Compact and vacuum the tables, sweep what nothing refers to.

    Args:
        options: Which configuration to use: recipe, profile, file, lake and single settings.
        dry_run: Only report what would be deleted.
    """
    with open_session(options, []) as session:
        lake = session.lake
        if not dry_run:
            commit_calls(lake)  # that a killed run had written down
            end_withdrawn(lake, Commit(new_run_id("maintain"), 1, stage=STAGE))
        done = maintain_lake(lake, session.config.maintain, dry_run)
        page = markdown(done, lake.uri)
        create_markdown_artifact(key="maintain", markdown=page, description="What maintenance freed")
        return done


def markdown(done: list[Done], lake: str) -> str:
    """What was done, as a page."""
    lines = [f"# Maintenance of `{lake}`", "", "| | | number | MB freed |", "|---|---|---:|---:|"]
    lines += [f"| {job.what} | {job.where} | {job.count:,} | {job.bytes / 1e6:,.1f} |" for job in done]
    return "\n".join(lines if done else [*lines[:2], "Nothing to do."]) + "\n"
