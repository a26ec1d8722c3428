"""What a stage did and what a part shows, as Prefect artifacts."""

from prefect.artifacts import create_link_artifact, create_markdown_artifact

from tasks.runtime.outcome import StageResult
from tasks.runtime.report import Report


def publish_report(part: str, report: Report) -> None:
    """A part's report: its page, and a link to each of its pictures (they lie on this machine, not on a web server)."""
    create_markdown_artifact(key=f"report-{part}", markdown=report.markdown, description=f"What {part} made")
    for picture in report.pictures:
        create_link_artifact(
            key=f"report-{part}-{picture.stem.replace('_', '-')}",
            link=picture.as_uri(),
            link_text=str(picture),
            description=f"{picture.name} of {part}",
        )


def stage_markdown(result: StageResult, lake: str) -> str:
    """A stage's result as a page of Markdown."""
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
        f"| standing | {', '.join(f'{count:,} {name}' for name, count in result.standing.items())} |",
    ]
    if result.usage.requests:
        used = result.usage
        lines.append(
            f"| models | {used.prompt_tokens:,} + {used.completion_tokens:,} tokens, {used.cost_usd:.4f} USD |"
        )
    lines.append(f"| lake | `{lake}` |")
    if result.standing_rejects:
        lines += ["", "## Rejects by reason", "", "| reason | this run | in all |", "|---|---:|---:|"]
        lines += [f"| {r} | {result.rejects.get(r, 0):,} | {n:,} |" for r, n in result.standing_rejects.items()]
    if result.failures:
        lines += ["", "## Failed, retried on the next run", "", "| kind | items |", "|---|---:|"]
        lines += [f"| {kind} | {count:,} |" for kind, count in sorted(result.failures.items())]
    return "\n".join(lines) + "\n"


def _rate(result: StageResult) -> str:
    return f"{result.items_in / result.seconds:,.1f} items/s" if result.items_in and result.seconds else "nothing to do"


def _versions(versions: object) -> str:
    assert isinstance(versions, dict)
    return ", ".join(f"{table} v{version}" for table, version in versions.items()) or "nothing"
