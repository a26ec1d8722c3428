"""The options that every command takes, how a command is registered with them, and how help and usage errors look."""

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from flows.cli.command import USAGE, Call, run_command
from schemas.recipes import default_recipe

COMMON: dict[str, Any] = {
    "config": Annotated[str | None, typer.Option("--config", metavar="FILE", help="A YAML file of settings.")],
    "recipe": Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=default_recipe(), help="Which published system to follow."),
    ],
    "profile": Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="offline", help="Services: offline, miniature, open or production."),
    ],
    "lake": Annotated[
        str | None,
        typer.Option("--lake", metavar="URI", show_default="lake", help="Tables and images: a folder or s3://bucket/…"),
    ],
    "overrides": Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; repeatable. `geofix settings` lists."),
    ],
    "as_json": Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, all else on stderr.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's log.")],
}
_SWITCHES = ("as_json", "quiet", "debug")

# Options of several commands, each declared once as well.
Snapshot = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        metavar="ID",
        show_default="the newest approved",
        help="The approved snapshot to work on: its id or its first 6 letters or more.",
    ),
]
Redo = Annotated[
    bool, typer.Option("--redo", help="Redo finished items whose settings changed, without asking (run.redo=always).")
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Leave finished items as they are, whatever the settings (run.redo=never).")
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="USD",
        min=0,
        help="Stop before all calls to models on this lake have cost more (models.budget_usd).",
    ),
]


def command(
    app: typer.Typer,
    group: str,
    examples: Sequence[str],
    name: str | None = None,
    about: str | None = None,
    without: Collection[str] = (),
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register `function(call, ...) -> exit code` as a command that also takes the common options.

    Parameters named in `without` are not offered; the function's default stands.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        epilog = "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in examples)
        app.command(
            name=name,
            help=about or function.__doc__,
            epilog=epilog,
            rich_help_panel=group,
            cls=Command,
        )(_with_common_options(function, without))
        return function

    return register


def _with_common_options(function: Callable[..., int], without: Collection[str]) -> Callable[..., None]:
    own = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("call", *without)
    ]
    common = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name in _SWITCHES else None,
            annotation=annotation,
        )
        for name, annotation in COMMON.items()
        if name not in without
    ]
    taken = {parameter.name for parameter in common}

    def run(**arguments: Any) -> None:
        call = Call(**{name: arguments.pop(name) for name in list(arguments) if name in taken})
        run_command(call, lambda: function(call, **arguments))

    every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + common
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return run


# Help and usage errors: options every command has in a section of their own, errors on one line ------------

# Typer carries its own copy of click, whose exceptions have no public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    """A command whose help lists its own options before those that every command has."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
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
        for title, entries in records.items():
            if entries:
                with formatter.section(title):
                    formatter.write_dl(entries)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        original = list(args)
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            option = getattr(error, "option_name", None)
            hint = _as_setting(self.name or "", option, original) if option and hasattr(error, "possibilities") else ""
            if not hint:
                raise
            raise _UsageError(f"there is no option {option}; {hint}", ctx) from None


class Group(TyperGroup):
    """The commands in sections; what was called wrongly is answered with one line and exit code 2."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            subcommand: Any = self.get_command(ctx, name)
            if subcommand is not None and not subcommand.hidden:
                title = getattr(subcommand, "rich_help_panel", None) or "Commands"
                sections.setdefault(title, []).append((name, subcommand.get_short_help_str(limit=200)))
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
