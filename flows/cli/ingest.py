"""`geofix ingest FILE`: checks first, then the flow, then words on what came in and what did not."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from flows.cli.command import DONE, FAILED_ROWS, Call, UsageError
from flows.cli.printing import print_json, program
from flows.cli.running import prefect_ready, shown_progress
from schemas.load import ConfigError
from tasks.geo.cell_split import SPLITS
from tasks.ingest import IngestResult, Survey, TableRefused, check_dataset, dataset_name, survey_table
from tasks.ingest.refusal import FIXES
from tasks.lake import Lake
from tasks.plan.strata import PlanStrata
from tasks.runtime.on_ray.start import check_temporary_folder
from tasks.services.errors import safe_text


def with_options(call: Call, chosen: Mapping[str, Any]) -> Call:
    """The call with its own options as settings, which `--set` may still override."""
    # JSON is YAML: quotes and colons in a licence's text stay what they are.
    own = [f"ingest.{name}={json.dumps(value)}" for name, value in chosen.items() if value not in (None, False)]
    return dataclasses.replace(call, overrides=[*own, *(call.overrides or [])])


def run_ingest(file: Path, call: Call) -> int:
    """Bring the table in; returns the exit code."""
    try:
        config = call.options().resolve()
    except ConfigError as error:
        raise ConfigError(_by_options(str(error), call)) from error
    check_temporary_folder(config.spread)
    path = file.expanduser()
    try:
        with shown_progress(call) as shown:
            shown.phase(f"reading {path.name}")
            survey = survey_table(path, config.ingest, PlanStrata(config.plan))
        dataset = dataset_name(path, config.ingest)
        is_new = not (Path(config.lake).expanduser() / "tables").is_dir()
        forecast = check_dataset(None if is_new else Lake(config.lake), survey, dataset, config.ingest, config.plan)
    except TableRefused as refused:
        raise UsageError(str(refused)) from refused
    lake = Lake(config.lake)
    with shown_progress(call) as shown:
        shown.say("\n".join(filter(None, (opening_words(survey, dataset), forecast and f"note: {forecast}"))))
        with prefect_ready(lake, shown, call.debug, config.flows.record_commands):
            result = _run_flow(survey, call)
    if call.as_json:
        print_json({"lake": lake.uri, **result.to_dict(), "stages": [dataclasses.asdict(result.stage)]})
    elif not call.quiet:
        print_closing(result, call)
    else:  # rows that did not come in are always told
        _print_left_out(result, Console(highlight=False, soft_wrap=True, stderr=True))
    return FAILED_ROWS if result.stage.failed else DONE


def _by_options(message: str, call: Call) -> str:
    """The message naming the option the user gave, which is handed on as if it were a `--set`."""

    def named(match: re.Match[str]) -> str:
        own = any(text.startswith(f'ingest.{match[1]}="') for text in call.overrides or [])
        option = "as" if match[1] == "purpose" else match[1].replace("_", "-")
        return f"--{option} (ingest.{match[1]})" if own else match[0]

    return re.sub(r"--set: ingest\.(\w+)", named, message)


def _run_flow(survey: Survey, call: Call) -> IngestResult:
    from flows.ingest import ingest, surveyed
    from flows.recording import run_flow

    token = surveyed.set(survey)
    try:
        result: IngestResult = run_flow(ingest, str(survey.table.path), call.options())
        return result
    finally:
        surveyed.reset(token)


def opening_words(survey: Survey, dataset: str) -> str:
    """What the table was taken for, before any picture is opened."""
    shown = {f: safe_text(name, limit=40) for f, name in survey.names.items()}
    columns = ", ".join(f"{f} from {name}" if f != name.casefold() else f for f, name in shown.items())
    lines = [f"{survey.table.path}: {survey.rows:,} rows, {survey.layout.name} layout ({columns}); dataset '{dataset}'"]
    return "\n".join([*lines, *(f"note: {note}" for note in survey.notes)])


def print_closing(result: IngestResult, call: Call) -> None:
    """What came in, what was refused and why, and what to do next."""
    console = Console(highlight=False, soft_wrap=True)
    photos = int(result.photos["photos"].sum())
    console.print(f"\nDataset '{result.dataset}' has {photos:,} photos in the lake{_by(result)}.")
    if result.stage.nothing_to_do:
        console.print(f"Nothing to redo: all {result.stage.total:,} rows were seen before.")
    if result.retired:
        console.print(f"{result.retired:,} photos that are no longer in the file were retired.")
    if result.dropped:
        console.print(f"{result.dropped:,} photos that were in the lake left it: their rows are refused now.")
    if result.report.noted.counts:
        odd = ", ".join(f"{count:,} {reason}" for reason, count in result.report.noted.counts.most_common())
        console.print(f"Kept, with a note: {odd}.")
    _print_left_out(result, console)
    if result.report.refused.counts or result.report.failed.counts or result.report.noted.counts:
        console.print(f"\nAll of these rows, with what to do: {result.report.path}")
    lake = f" --lake {call.lake}" if call.lake else ""
    if photos:
        look = f"{program()} show images{lake} --where source={result.dataset}"
        console.print(f"Next: {program()} curate{lake}   (look first: {look})")


def _by(result: IngestResult) -> str:
    kinds = dict(result.photos.group_by("kind").agg(pl.col("photos").sum()).sort("kind").iter_rows())
    splits = dict(result.photos.group_by("split").agg(pl.col("photos").sum()).iter_rows())
    counted = [f"{splits[name]:,} {name}" for name in SPLITS if name in splits]
    if "panorama" in kinds:
        counted.append(f"{kinds['panorama']:,} of them panoramas")
    return f" ({', '.join(counted)})" if counted else ""


def _print_left_out(result: IngestResult, console: Console) -> None:
    if result.report.refused.counts:
        _print_refused(result, console)
    if result.report.failed.counts:
        _print_failed(result, console)


def _print_refused(result: IngestResult, console: Console) -> None:
    counts = result.report.refused.counts
    console.print(f"\n{counts.total():,} of {result.survey.rows:,} rows were refused:")
    width = len(f"{max(counts.values()):,}")
    for reason, count in counts.most_common():
        console.print(Text.assemble(f"  {count:>{width},} ", (reason, "bold"), f": {FIXES[reason]}"))
        for example in result.report.refused.examples[reason]:
            console.print(Text(f"  {'':<{width}}   {_example(example)}", style="dim"))


def _print_failed(result: IngestResult, console: Console) -> None:
    counts = result.report.failed.counts
    console.print(f"\n{counts.total():,} rows failed, and are tried again when you run the same command:")
    for kind, count in counts.most_common():
        console.print(Text.assemble(f"  {count:,} ", (kind, "bold")))
        for example in result.report.failed.examples[kind]:
            console.print(Text(f"    {_example(example)}", style="dim"))


def _example(example: Mapping[str, Any]) -> str:
    who = f" ({safe_text(example['id'], limit=60)})" if example["id"] and example["id"] != example["given"] else ""
    value = f" {example['given']!r}:" if example["given"] else ""
    column = f" {example['column']}" if example["column"] else ""
    return f"row {example['row']}{who}:{column}{value} {example['problem']}"
