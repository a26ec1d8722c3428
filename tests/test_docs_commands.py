"""Every `geofix` command that a page names exists, with its options and settings; tours and papers run as written."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from bench.rehearsal.__main__ import main as rehearse
from flows.cli import app
from schemas.load import load_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUP: Any = get_command(app)
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # has no public name
TOURS = ("tour-data-engineer", "tour-reviewer", "tour-ml-engineer")


def fenced(text: str) -> Iterator[str]:
    """The lines of shell blocks, those that go on joined."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in ("", "sh"):
            yield from block.replace("\\\n", " ").splitlines()


def commands(text: str) -> Iterator[list[str]]:
    """Whole command lines in shell blocks, as words."""
    for line in fenced(text):
        found = re.match(r"\s*(?:[A-Za-z_]+=\$\()?(?:\.venv/bin/)?geofix (?P<words>\S.*)", line)
        if found and not re.search(r"…|\.\.\.", line.partition("#")[0]):
            try:
                words = shlex.split(found["words"].partition(" | ")[0].rstrip("&) "), comments=True)
            except ValueError:
                pytest.fail(f"cannot be split into words: {line}")
            yield words


def named(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Command names and options of commands inside sentences: `geofix collect|curate --dry-run`."""
    for inside in re.findall(r"`geofix ([a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        first = inside.split()[0]
        yield first.split("|"), re.findall(r"(?<=\s)--[a-z][a-z-]*", inside)


def problem(words: list[str]) -> str | None:
    """Why a command line would be refused before it did anything."""
    try:
        with GROUP.make_context("geofix", list(words), resilient_parsing=False) as context:
            name, command, rest = GROUP.resolve_command(context, list(words))
            inner = command.make_context(name, rest, parent=context)
    except typer.Exit:
        return None  # --help
    except USAGE_ERROR as error:
        return str(error)
    given = inner.params
    if given.get("config"):
        return None  # a file of the reader's, whose settings the line's own go with
    try:
        load_config(
            given.get("recipe"), given.get("profile"), overrides=given.get("set") or given.get("overrides") or ()
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the page is wrong
        return str(error)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = {shlex.join(words): why for words in commands(text) if (why := problem(words))}
    for names, options in named(text):
        for name in names:
            command = GROUP.commands.get(name)
            if command is None:
                wrong[f"geofix {name}"] = "there is no such command"
                continue
            known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
            if missing := [option for option in options if option not in known]:
                wrong[f"geofix {name} {' '.join(missing)}"] = "there is no such option"
    assert wrong == {}


def test_wrong_commands_are_found() -> None:
    assert "No such option" in (problem(["plan", "--fast"]) or "")
    assert "No such command" in (problem(["fly"]) or "")
    assert "plan.placs" in (problem(["plan", "--set", "plan.placs=3"]) or "")
    assert problem(["plan", "--set", "plan.places=3"]) is None
    page = "```sh\nID=$(geofix show snapshots --limit 1 | tail -1)\ngeofix plan --set a=1   # why\n```\n`geofix up --x`"
    assert list(commands(page)) == [["show", "snapshots", "--limit", "1"], ["plan", "--set", "a=1"]]
    assert list(named(page)) == [(["up"], ["--x"])]


@pytest.mark.slow
def test_the_tours_are_run_as_written(tmp_path: Path) -> None:
    """One after another in one folder, as their reader does, on one lake."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for tour in TOURS:
        text = (ROOT / "docs" / f"{tour}.md").read_text(encoding="utf-8")
        script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        command = ["bash", "-xeuo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        (tmp_path / f"{tour}.log").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, f"{tour}: {done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    for made in ("lake/tables/models", "published", "backup/tables/images", "where.html"):
        assert (tmp_path / made).exists(), made


@pytest.mark.slow
def test_the_papers_are_reproduced_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/reproduce.md with the profile `production`, on loopback servers and stand-ins: `make rehearsal`."""
    assert rehearse(["--folder", str(tmp_path)]) == 0, capsys.readouterr().out[-3000:]
    assert "production settings never read: none" in capsys.readouterr().out
