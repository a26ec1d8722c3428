"""How help and usage errors look: options every command has in a section of their own, errors on one line."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

USAGE = 2
# Typer carries its own copy of click, whose exceptions have no public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    """A command whose help lists its own options before those that every command has."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from flows.cli.options import COMMON

        records: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "Options of every command": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                section = "Arguments"
            else:
                is_common = parameter.name in COMMON or parameter.name == "help"
                section = "Options of every command" if is_common else "Options"
            records[section].append(record)
        for title, found in records.items():
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            option = getattr(error, "option_name", None)
            hint = _as_setting(self.name or "", option, given) if option and hasattr(error, "possibilities") else ""
            if not hint:
                raise
            raise _UsageError(f"there is no option {option}; {hint}", ctx) from None


class Group(TyperGroup):
    """The commands in sections; what was called wrongly is answered with one line and exit code 2."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            found: Any = self.get_command(ctx, name)
            if found is not None and not found.hidden:
                title = getattr(found, "rich_help_panel", None) or "Commands"
                sections.setdefault(title, []).append((name, found.get_short_help_str(limit=200)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=14)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            if not standalone_mode:
                raise
            sys.exit(_say(error))
        except typer.Abort:
            print("aborted", file=sys.stderr)
            sys.exit(1)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _say(error: Any) -> int:
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    text = error.format_message().strip().rstrip(".").replace(". Did you mean", ": did you mean")
    text = f"{text[:1].lower()}{text[1:]}"
    path = context.command_path if context is not None else "geofix"
    print(f"geofix: {text}{' ' if text.endswith('?') else '; '}`{path} --help` explains", file=sys.stderr)
    return USAGE


def _as_setting(command: str, option: str, args: Sequence[str]) -> str:
    """What to write instead of an option that is the name of a setting."""
    from schemas.load import settings_named

    field = option.lstrip("-").replace("-", "_")
    if len(field) < 2:
        return ""
    names = settings_named(field)
    own = [name for name in names if name.split(".")[0] == command]
    chosen = (own or names)[:3]
    if not chosen:
        return ""
    value = _value_after(option, args)
    return "a setting is given as " + " or ".join(f"`--set {name}={value}`" for name in chosen)


def _value_after(option: str, args: Sequence[str]) -> str:
    for number, word in enumerate(args):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and number + 1 < len(args) and not args[number + 1].startswith("--"):
            return args[number + 1]
    return "VALUE"
