"""What the torture suite calls clean."""

import signal
from pathlib import Path

import pytest

from bench.torture import STAGES, judge_end, table
from bench.torture_faults import FAULTS, HANGS, READ, USED, Ended, Fault

FULL = Fault("full disk", lambda cell: Ended(0, "", ""), "no space.*free")


@pytest.mark.parametrize(
    "ended",
    [
        Ended(0, "", "plan 3 in = 3 kept"),
        Ended(-signal.SIGKILL, "", ""),
        Ended(1, "", "plan: 0 s\ngeofix: no space is left: free some and run again\n"),
        Ended(3, "3 items failed and are retried by the next run: geofix show failures\n  plan 3 no space: free\n", ""),
    ],
)
def test_going_on_or_one_line_that_names_fault_and_mending_is_clean(ended: Ended) -> None:
    assert judge_end(ended, FULL)[0] == []


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (Ended(1, "", "Killed\n"), "exit code 1 with 0 lines"),
        (Ended(1, "", "geofix: no space: free some\ngeofix: no space: free some\n"), "with 2 lines"),
        (Ended(1, "", "geofix: it did not work\n"), "does not name the fault"),
        (Ended(0, "", "Traceback (most recent call last):\n  …"), "Traceback"),
        (Ended(1, "", "geofix: OSError: no space, free (a bug in geofix; --debug shows where)\n"), "a bug in geofix"),
        (Ended(HANGS, "", "plan: 0 of 3, waiting\n"), "it hangs: plan: 0 of 3, waiting"),
    ],
)
def test_everything_else_is_not(ended: Ended, wrong: str) -> None:
    assert wrong in "; ".join(judge_end(ended, FULL)[0])


def test_a_cell_without_meaning_says_why_and_no_cell_is_absent() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 18
    for fault in FAULTS:
        assert fault.senseless.keys() <= STAGES.keys() and all(fault.senseless.values())
    assert READ.keys() == STAGES.keys()
    missing = next(fault for fault in FAULTS if fault.name == "missing picture")
    assert USED.keys() | missing.senseless.keys() == STAGES.keys()


def test_the_table_shows_what_was_seen() -> None:
    seen = {
        ("a", "plan"): "clean: went on",
        ("a", "curate"): "– reads no picture",
        ("b", "plan"): 'clean: exit code 1, "geofix: x"',
        ("b", "curate"): "NOT CLEAN: labels: 3 rows undisturbed, 2 after the kills",
    }
    assert table(seen, ["a", "b", "c"], ["plan", "curate"]).splitlines() == [
        "| fault | plan | curate |",
        "|---|---|---|",
        "| a | went on | – |",
        "| b | one line | **NOT CLEAN** |",
        "| c | not run | not run |",
        "",
        "- curate: a: – reads no picture",
        '- plan: b: clean: exit code 1, "geofix: x"',
        "- curate: b: NOT CLEAN: labels: 3 rows undisturbed, 2 after the kills",
    ]


def test_the_docs_name_every_fault() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    rows = text.partition("## When something breaks")[2].splitlines()
    named = [name for row in rows if row.startswith("| ") for name in row.split(" | ")[0].strip("| ").split(", ")]
    assert named[1:] == [fault.name for fault in FAULTS]
