"""`geofix settings [NAME]`: what can be set, what it means, what it is now."""

import dataclasses
import difflib
import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.cli.command import DONE, Call, UsageError
from flows.cli.printing import print_json
from schemas.config import Config
from schemas.describe import Setting, sections_of, settings_of

INDENT = "  "


def show_settings(call: Call, wanted: str | None) -> int:
    """The sections, or every field below a name."""
    every = [_without_key(one) for one in settings_of(Config(), call.options().resolve())]
    chosen = _chosen(every, wanted) if wanted else every
    if call.as_json:
        print_json([dataclasses.asdict(one) for one in chosen])
        return DONE
    console = Console(highlight=False)
    if wanted:
        _print_fields(console, chosen)
    else:
        _print_sections(console, every)
    return DONE


def _chosen(every: list[Setting], wanted: str) -> list[Setting]:
    """The fields of that name or below it; else those of any section with such a field."""
    found = [one for one in every if one.name == wanted or one.name.startswith(f"{wanted}.")]
    found = found or [one for one in every if f".{one.name}".endswith(f".{wanted}")]
    if not found:
        known = {name for name, _ in sections_of(Config)} | {one.name for one in every}
        known |= {one.name.rpartition(".")[2] for one in every}
        close = difflib.get_close_matches(wanted, sorted(known), 1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(f"there is no setting or section '{wanted}'; {hint}`geofix settings` lists the sections")
    return found


def _without_key(one: Setting) -> Setting:
    """Only the offline world's own keys are public; any other value may be a real one."""
    if one.name.endswith(".public_key") and one.value not in (None, one.default):
        return dataclasses.replace(one, value="(given)")
    return one


def _print_sections(console: Console, every: list[Setting]) -> None:
    grid = Table.grid(padding=(0, 2))
    for column in ("section", "fields", "what it is"):
        grid.add_column(justify="right" if column == "fields" else "left", no_wrap=column == "section")
    for name, about in sections_of(Config):
        if name:
            count = sum(one.section == name for one in every)
            grid.add_row(Text(name, style="bold"), str(count), about)
    console.print(grid)
    console.print("\ngeofix settings plan          fields, values and meanings of a section, or of one field")
    console.print("geofix plan --set plan.places=200   or `plan: {places: 200}` in a file for --config")


def _print_fields(console: Console, chosen: list[Setting]) -> None:
    about = dict(sections_of(Config))
    for section in dict.fromkeys(one.section for one in chosen):
        mine = [one for one in chosen if one.section == section]
        if not console.is_terminal:  # for grep: a field a line, with its whole name
            for one in mine:
                console.print(
                    Text(f"{one.name}  {_value(one)}  ({one.allowed})  {one.meaning}".rstrip()), soft_wrap=True
                )
            continue
        console.print(Text.assemble((section or "geofix", "bold"), f"  {about.get(section, '')}"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold", max_width=30)
        grid.add_column(ratio=1)
        for one in mine:
            name = Text(INDENT + one.name.rpartition(".")[2])
            told = Text.assemble(one.meaning, "\n" if one.meaning else "", (one.allowed, "dim"))
            changed = one.value != one.default
            grid.add_row(name, Text(_value(one), style="bold yellow" if changed else "cyan"), told)
        console.print(grid)
        console.print()


def _value(one: Setting) -> str:
    now = _text(one.value)
    return now if one.value == one.default else f"{now} (default {_text(one.default)})"


def _text(value: Any) -> str:
    """As one writes it after --set."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
