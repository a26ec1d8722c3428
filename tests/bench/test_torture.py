"""What the torture suite calls clean."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench import torture_faults
from bench.torture import STAGES, judge_end, table
from bench.torture_faults import FAULTS, HANGS, READ, USED, Ended, Fault

pytestmark = pytest.mark.whole

CLOCK = Path(torture_faults.__file__).with_name("clock_shift.c")
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


WAITS = """
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static double since(double began) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9 - began;
}
int main(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    int word = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    printf("%ld", (long)until.tv_sec);
    until.tv_nsec = 0, until.tv_sec += 2;
    double began = since(0);
    pthread_mutex_lock(&mutex);
    pthread_cond_timedwait(&cond, &mutex, &until);
    printf(" %.3f", since(began));
    until.tv_sec += 1, began = since(0);
    syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, &until, 0, FUTEX_BITSET_MATCH_ANY);
    printf(" %.3f\\n", since(began));
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_clock_jumps_and_who_waits_until_a_time_still_waits(tmp_path: Path) -> None:
    library, program, source, shift = (tmp_path / name for name in ("clock.so", "waits", "waits.c", "shift"))
    source.write_text(WAITS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, CLOCK, "-ldl"], check=True)
    subprocess.run(["cc", "-o", program, source, "-lpthread"], check=True)
    for by_s in (86_400, -86_400):
        shift.write_text(str(by_s))
        shifted = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(shift)}
        said = subprocess.run([program], env=shifted, capture_output=True, text=True, check=True, timeout=60).stdout
        now, by_condition, by_call = said.split()
        assert abs(int(now) - time.time() - by_s) < 60
        assert 0.9 < float(by_condition) < 30 and 0.9 < float(by_call) < 30
