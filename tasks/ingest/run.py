"""A table into the lake: surveyed, checked, brought in batch by batch; and what came of it."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from schemas.messages import Usage
from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.ingest.dataset import forget_refusals, photos_of, retire
from tasks.ingest.draw import Strata, drawn
from tasks.ingest.report import Report, write_report
from tasks.ingest.rows import item_batches
from tasks.ingest.stage import NAME, Job, stage_of
from tasks.ingest.survey import Survey, survey_rows
from tasks.runtime.on_ray.budget_actor import shared_rate_budget
from tasks.runtime.runner import Context, StageResult, Tick, run


@dataclass(frozen=True)
class IngestResult:
    """What a table became."""

    dataset: str
    survey: Survey
    stage: StageResult
    report: Report  # of rows that were refused, failed, or kept with notes
    retired: int  # photos that are no longer in the table
    dropped: int  # photos that were in the lake, and whose rows are refused now
    photos: pl.DataFrame  # in the lake: kind, split, photos

    def to_dict(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "file": str(self.survey.table.path),
            "dataset": self.dataset,
            "layout": self.survey.layout.name,
            "columns": dict(self.survey.names),
            "rows": self.survey.rows,
            "notes": list(self.survey.notes),
            "photos": self.photos.to_dicts(),
            "refused": dict(self.report.refused.counts),
            "refused_examples": self.report.refused.examples,
            "failed": dict(self.report.failed.counts),
            "failed_examples": self.report.failed.examples,
            "noted": dict(self.report.noted.counts),
            "retired": self.retired,
            "dropped": self.dropped,
            "report": str(self.report.path),
        }


def survey_table(path: Path, settings: IngestSettings, strata: Strata | None = None) -> Survey:
    """What the table is; TableRefused, with the way out, when it cannot be taken as a whole.

    `strata` are for settings that draw rows by country and cell.
    """
    return drawn(survey_rows(path, settings), settings, strata)


def ingest_table(
    survey: Survey, dataset: str, settings: IngestSettings, plan: PlanSettings, context: Context
) -> IngestResult:
    """Bring the table in. A run that is killed goes on where it stopped, when it is started again."""
    lake = context.lake
    rate_budget = shared_rate_budget(lake, context.spread) if "url" in survey.names else None
    job = Job(dataset, survey.folder, settings, dict(survey.names), survey.embedded, rate_budget)
    if settings.retry_refused:
        forget_refusals(lake, dataset)
    total = _Total(survey.rows, context)
    before = photos_of(lake, dataset)["item_id"]
    seen: list[pl.DataFrame] = []
    for batch in item_batches(survey, dataset, settings, plan):
        # A run sees one batch of one dataset: what it does not see must stay. Photos that left their table are
        # retired when the whole of it was seen.
        total.results.append(run(stage_of(batch), job, replace(context, progress=total.tick, is_part=True)))
        seen.append(batch.select("row", id="source_id", item_id="id", good=pl.col("refusal").is_null()))
    items = pl.concat(seen)
    report = write_report(lake, dataset, items)
    retire(lake, dataset, items["item_id"])
    photos = photos_of(lake, dataset)
    left = before.filter(~before.is_in(photos["item_id"].implode()))
    dropped = int(left.is_in(items["item_id"].implode()).sum())
    return IngestResult(
        dataset=dataset,
        survey=survey,
        stage=total.result(),
        report=report,
        retired=len(left) - dropped,
        dropped=dropped,
        photos=photos.group_by("kind", "split").agg(photos=pl.len()).sort("kind", "split"),
    )


@dataclass
class _Total:
    """The batches' results and progress as one."""

    rows: int
    context: Context
    results: list[StageResult] = field(default_factory=list)

    def _sum(self, *names: str) -> dict[str, Any]:
        return {name: sum(getattr(result, name) for result in self.results) for name in names}

    def tick(self, now: Tick) -> None:
        before = self._sum("skipped", "kept", "rejected", "failed", "seconds", "total")
        sums = {name: number + getattr(now, name) for name, number in before.items()}
        finished = now.finished and sums["total"] == self.rows
        self.context.progress(Tick(**{**sums, "stage": NAME, "total": self.rows, "finished": finished}))

    def result(self) -> StageResult:
        last = self.results[-1]
        return replace(
            last,
            status="done_with_failures" if any(r.failed for r in self.results) else last.status,
            input_versions=self.results[0].input_versions,
            **self._sum("total", "skipped", "items_in", "kept", "rejected", "failed", "seconds"),
            rejects=dict(sum((Counter(r.rejects) for r in self.results), Counter())),
            failures=dict(sum((Counter(r.failures) for r in self.results), Counter())),
            usage=sum((r.usage for r in self.results), Usage()),
        )
