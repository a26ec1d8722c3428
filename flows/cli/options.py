"""The options that every command takes, declared once, and how a command is registered with them."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import typer

from flows.cli.command import Call, run_command
from flows.cli.help import Command
from schemas.recipes import default_recipe

COMMON: dict[str, Any] = {
    "config": Annotated[str | None, typer.Option("--config", metavar="FILE", help="A YAML file of settings.")],
    "recipe": Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=default_recipe(), help="Which published system to follow."),
    ],
    "profile": Annotated[
        str | None, typer.Option(metavar="NAME", show_default="offline", help="Services: offline or production.")
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
    own = [one for one in inspect.signature(function).parameters.values() if one.name not in ("call", *without)]
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
    taken = {one.name for one in common}

    def run(**given: Any) -> None:
        call = Call(**{name: given.pop(name) for name in list(given) if name in taken})
        run_command(call, lambda: function(call, **given))

    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + common
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every}
    return run
