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
    every = [_without_key(setting) for setting in settings_of(Config(), call.options().resolve())]
    chosen = _chosen(every, wanted) if wanted else every
    if call.as_json:
        print_json([dataclasses.asdict(setting) for setting in chosen])
        return DONE
    console = Console(highlight=False)
    if wanted:
        _print_fields(console, chosen)
    else:
        _print_sections(console, every)
    return DONE


def _chosen(every: list[Setting], wanted: str) -> list[Setting]:
    """The fields of that name or below it; else those of any section with such a field."""
    matches = [setting for setting in every if setting.name == wanted or setting.name.startswith(f"{wanted}.")]
    matches = matches or [setting for setting in every if f".{setting.name}".endswith(f".{wanted}")]
    if not matches:
        known = {name for name, _ in sections_of(Config)} | {setting.name for setting in every}
        known |= {setting.name.rpartition(".")[2] for setting in every}
        close = difflib.get_close_matches(wanted, sorted(known), 1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(f"there is no setting or section '{wanted}'; {hint}`geofix settings` lists the sections")
    return matches


def _without_key(setting: Setting) -> Setting:
    """Only the offline world's own keys are public; any other value may be a real one."""
    if setting.name.endswith(".public_key") and setting.value not in (None, setting.default):
        return dataclasses.replace(setting, value="(given)")
    return setting


def _print_sections(console: Console, every: list[Setting]) -> None:
    grid = Table.grid(padding=(0, 2))
    for column in ("section", "fields", "what it is"):
        grid.add_column(justify="right" if column == "fields" else "left", no_wrap=column == "section")
    for name, about in sections_of(Config):
        if name:
            count = sum(setting.section == name for setting in every)
            grid.add_row(Text(name, style="bold"), str(count), about)
    console.print(grid)
    console.print("\ngeofix settings plan          fields, values and meanings of a section, or of one field")
    console.print("geofix plan --set plan.places=200   or `plan: {places: 200}` in a file for --config")


def _print_fields(console: Console, chosen: list[Setting]) -> None:
    about = dict(sections_of(Config))
    for section in dict.fromkeys(setting.section for setting in chosen):
        mine = [setting for setting in chosen if setting.section == section]
        if not console.is_terminal:  # for grep: a field a line, with its whole name
            for setting in mine:
                console.print(
                    Text(f"{setting.name}  {_value(setting)}  ({setting.allowed})  {setting.meaning}".rstrip()),
                    soft_wrap=True,
                )
            continue
        console.print(Text.assemble((section or "geofix", "bold"), f"  {about.get(section, '')}"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold", max_width=30)
        grid.add_column(ratio=1)
        for setting in mine:
            name = Text(INDENT + setting.name.rpartition(".")[2])
            told = Text.assemble(setting.meaning, "\n" if setting.meaning else "", (setting.allowed, "dim"))
            changed = setting.value != setting.default
            grid.add_row(name, Text(_value(setting), style="bold yellow" if changed else "cyan"), told)
        console.print(grid)
        console.print()


def _value(setting: Setting) -> str:
    now = _text(setting.value)
    return now if setting.value == setting.default else f"{now} (default {_text(setting.default)})"


def _text(value: Any) -> str:
    """As one writes it after --set."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
