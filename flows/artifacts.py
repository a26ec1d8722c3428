"""What a step does and did, and what a stage shows, as Prefect artifacts."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.recording import is_recorded, publish
from schemas.messages import money
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.report import Report

PROGRESS_EVERY_S = 5.0

logger = logging.getLogger("geofix.flows")


class ProgressArtifact:
    """A step's progress bar in the UI; made for a step that takes longer than a few seconds."""

    def __init__(self, stage: str) -> None:
        self._stage, self._next_s = stage, time.monotonic() + PROGRESS_EVERY_S
        self._artifact: UUID | None = None

    def tick(self, tick: Tick) -> None:
        if not tick.todo or (time.monotonic() < self._next_s and not (tick.finished and self._artifact)):
            return
        if not is_recorded():
            return
        self._next_s = time.monotonic() + PROGRESS_EVERY_S
        percent = 100.0 * tick.done / tick.todo
        about = f"{self._stage}: {tick.done:,} of {tick.todo:,}, {tick.failed:,} failed"
        with contextlib.suppress(httpx.HTTPError):  # the work does not depend on its bar
            if self._artifact is None:
                key = f"progress-{artifact_key(self._stage)}"
                made = create_progress_artifact(percent, key=key, description=about)
                assert isinstance(made, UUID)  # not a coroutine: there is no event loop here
                self._artifact = made
            else:
                update_progress_artifact(self._artifact, percent, description=about)


def publish_step(result: StageResult, lake: str, more: str = "") -> None:
    """A step's counts, versions and reasons as an artifact, and its counts in the run's log."""
    counts = f"{result.kept:,} kept + {result.rejected:,} rejected + {result.failed:,} failed"
    before = f"; {result.skipped:,} done before" if result.skipped else ""
    logger.info("%s: %s in = %s%s, %.1f s", result.stage, f"{result.items_in:,}", counts, before, result.seconds)
    publish(
        create_markdown_artifact,
        key=f"stage-{artifact_key(result.stage)}",
        markdown=step_markdown(result, lake) + more,
        description=f"{result.stage}: in = kept + rejected + failed",
    )


def publish_counts(results: Sequence[StageResult]) -> None:
    """The counts of all steps of a run, as a table."""
    columns = ("stage", "skipped", "items_in", "kept", "rejected", "failed", "seconds")
    rows = [{column: _cell(getattr(result, column)) for column in columns} for result in results]
    publish(create_table_artifact, table=rows, key="counts", description="in = kept + rejected + failed, by step")


def publish_report(stage: str, report: Report, address: Callable[[str], str]) -> None:
    """A stage's report: its page with the addresses of its pictures, and a link to each one that a browser can open."""
    places = {picture: address(f"reports/{stage}/{picture.name}") for picture in report.pictures}
    listed = "".join(f"\n- {picture.name}: {markdown_place(place)}" for picture, place in places.items())
    publish(
        create_markdown_artifact,
        key=f"report-{stage}",
        markdown=f"{report.markdown}\n{listed}\n",
        description=f"What {stage} made",
    )
    for picture, place in places.items():
        _link(f"report-{stage}-{picture.stem.replace('_', '-')}", place, picture.name, f"{picture.name} of {stage}")


def publish_verdict(verdict: str, report: str) -> None:
    """What checks and reviewer say of the snapshot."""
    publish(
        create_markdown_artifact,
        key="verdict",
        markdown=f"{verdict}\n\nIts report: {markdown_place(report)}\n",
        description="Verdict of the review",
    )
    _link("snapshot-report", report, "Report of the snapshot", "What the reviewer reads")


def markdown_place(place: str) -> str:
    """A link, where a browser can follow it: none opens a file from a page of Prefect's."""
    return f"<{place}>" if _is_address(place) else f"`{place}`"


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _link(key: str, place: str, text: str, about: str) -> None:
    if _is_address(place):
        publish(create_link_artifact, key=key, link=place, link_text=text, description=about)


def step_markdown(result: StageResult, lake: str) -> str:
    """A step's result as a page of Markdown."""
    lines = [
        f"# {result.stage}",
        "",
        f"**{result.items_in:,} in = {result.kept:,} kept + {result.rejected:,} rejected + {result.failed:,} failed**"
        + (f"; {result.skipped:,} finished by earlier runs" if result.skipped else ""),
        "",
        "| | |",
        "|---|---|",
        f"| run | `{result.run_id}` |",
        f"| time | {result.seconds:.1f} s, {_rate(result)} |",
        f"| reads | {_versions(result.input_versions)} |",
        f"| writes | {_versions(result.output_versions)} |",
        f"| in all | {', '.join(f'{count:,} {name}' for name, count in result.totals.items())} |",
    ]
    if result.usage.requests:
        used = result.usage
        lines.append(f"| models | {used.prompt_tokens:,} + {used.completion_tokens:,} tokens, {money(used.cost_usd)} |")
    lines.append(f"| lake | `{lake}` |")
    if result.total_rejects:
        lines += ["", "## Rejects by reason", "", "| reason | this run | in all |", "|---|---:|---:|"]
        lines += [f"| {r} | {result.rejects.get(r, 0):,} | {n:,} |" for r, n in result.total_rejects.items()]
    if result.failures:
        lines += ["", "## Failed, retried on the next run", "", "| kind | items |", "|---|---:|"]
        lines += [f"| {kind} | {count:,} |" for kind, count in sorted(result.failures.items())]
    return "\n".join(lines) + "\n"


def artifact_key(stage: str) -> str:
    """The step's name as Prefect wants keys: lowercase letters, numbers and dashes."""
    return stage.replace(".", "-").replace("_", "-")


def _rate(result: StageResult) -> str:
    return f"{result.items_in / result.seconds:,.1f} items/s" if result.items_in and result.seconds else "nothing to do"


def _versions(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{table} v{version}" for table, version in versions.items()) or "nothing"


def _cell(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value
