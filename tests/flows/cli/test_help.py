"""Help, options and usage errors: declared once, explained with examples, answered with the right spelling."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.options import COMMON
from flows.cli.stages import about_stage
from flows.order import STAGES

COMMANDS = sorted(set(get_command(app).commands) - {"offline", "version"})  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_defaults_and_the_common_options(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    assert "Examples:" in done.output and f"  geofix {name}" in done.output
    for option in ("--config", "--lake", "--set", "--json", "--quiet", "--debug"):
        assert option in done.output
    assert "[default: (lake)]" in " ".join(done.output.split())


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_the_order_has_a_command_with_its_own_words(stage: str) -> None:
    assert stage in COMMANDS
    about = about_stage(stage)
    assert len(about.split()) >= 4 and about in " ".join(CliRunner().invoke(app, [stage, "--help"]).output.split())


def test_a_new_stage_gets_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    from flows.cli import stages

    monkeypatch.setattr(stages, "STAGES", (*STAGES, "elevate"))
    monkeypatch.setattr(stages, "about_stage", lambda stage: f"Text of {stage}.")
    fresh = typer.Typer()
    stages.register(fresh)
    done = CliRunner().invoke(fresh, ["elevate", "--help"])
    assert done.exit_code == 0 and "Text of elevate." in done.output and "--snapshot" in done.output


@pytest.mark.parametrize(("stage", "offered"), [(p, p not in ("plan", "collect", "curate", "review")) for p in STAGES])
def test_a_snapshot_is_chosen_only_after_review(stage: str, offered: bool) -> None:
    assert ("--snapshot" in CliRunner().invoke(app, [stage, "--help"]).output) is offered


def test_common_options_are_declared_in_one_place() -> None:
    folder = Path(__file__).parents[3] / "flows" / "cli"
    found = [
        (path.name, node.value)
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ("--config", "--set", "--json", "--quiet", "--debug")
    ]
    assert sorted(set(found)) == sorted(found) and {name for name, _ in found} == {"options.py"}
    assert set(COMMON) == {"config", "recipe", "profile", "lake", "overrides", "as_json", "quiet", "debug"}


def test_help_does_not_import_what_runs() -> None:
    heavy = "{'polars', 'pydantic', 'prefect', 'ray', 'torch', 'rich.console'}"
    code = f"import sys, flows.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--places", "50"], ["no option --places", "`--set plan.places=50`"]),
        (["plan", "--places=50"], ["`--set plan.places=50`"]),
        (["collect", "--size-px", "5"], ["`--set collect.satellite.size_px=5`"]),
        (["plan", "--wherefore"], ["--wherefore", "`geofix plan --help`"]),
        (["pln"], ["no such command 'pln': did you mean 'plan'?"]),
        (["show"], ["missing argument", "`geofix show --help`"]),
        (["plan", "--redo", "--keep"], ["--redo and --keep exclude each other"]),
        (["run", "--snapshot", "3c44bc07"], ["a run from plan takes a new snapshot", "--from synthesize --snapshot"]),
        (["plan", "--lake", ""], ["lake: given ''; must be text, not empty"]),
        (["plan", "--set", "places=50"], ["did you mean 'plan.places'"]),
        (["plan", "--set", "evaluate.policies=[1]"], ["evaluate.policies.0: given 1; must be a list of text"]),
        (["plan", "--set", "offline.serve=perhaps"], ["offline.serve: given 'perhaps'; must be true or false"]),
        (["plan", "--set", "review.auto_approve=3"], ["must be true or false"]),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments, prog_name="geofix")
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("checking the settings")]
    assert line.startswith("geofix: ")
    for word in words:
        assert word in line
    assert list(tmp_path.iterdir()) == []


def test_no_command_takes_anothers_name() -> None:
    names = [one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
