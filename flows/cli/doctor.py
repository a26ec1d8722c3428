"""`geofix doctor`: what a run with these settings would find, on one screen."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from flows.cli.command import DONE, FAILED, Call
from flows.cli.options import command
from flows.cli.printing import print_json

if TYPE_CHECKING:
    from flows.doctor import Finding

GROUP = "Servers and more"
MARKS = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[dim]-[/]"}


def register(app: typer.Typer) -> None:
    """The command."""
    command(app, GROUP, ["geofix doctor", "geofix doctor --profile production --lake s3://bucket/lake"])(doctor)


def doctor(call: Call) -> int:
    """Say what is installed and missing, which service answers and what a GPU gives; 0 if the profile can run."""
    from flows.doctor import examine

    findings = examine(call.options().resolve())
    missing = [finding for finding in findings if finding.verdict == "missing"]
    if call.as_json:
        print_json({"can_run": not missing, "findings": [asdict(finding) for finding in findings]})
    elif not call.quiet:
        _show(findings, missing)
    return FAILED if missing else DONE


def _show(findings: "Sequence[Finding]", missing: "Sequence[Finding]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.about, MARKS[finding.verdict], escape(finding.text))
    console = Console(highlight=False)
    console.print(table)
    names = ", ".join(finding.about for finding in missing)
    console.print(f"cannot run: {names}" if missing else "can run", style="bold")
