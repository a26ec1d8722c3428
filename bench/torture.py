"""Strike every stage with every fault, mend the fault, run the same command again, and compare the tables.

    make torture
    python -m bench.torture --fault 'full disk' --stage curate [--fault …] [--stage …] [--jobs 1] [--keep]

One offline world, one Prefect server and one undisturbed lake are made first; the lake is kept as it was before and
after each stage. A cell is one stage on a copy of the lake before it, struck by one fault (`bench/torture_faults.py`).
It is clean if the command goes on as if nothing had been, or ends with an exit code other than 0 and one line that
names the fault and what to do; and if, with the fault gone, the same command ends well, with the tables of the
undisturbed run: rows by key, none lost, none twice, in = kept + rejected + failed, no damaged picture, no process left.
Cells without meaning say why. The table is printed and written to `torture.md`; a cell that is not clean gives exit
code 1. Disks are filled and write-protected as mounts of their own, which takes root or user namespaces (`unshare`);
clocks are set by a small library (`bench/clock_shift.c`), which takes a C compiler.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from bench.chaos import ENDED, differences, stray_files, stray_processes
from bench.offline_server import offline_server
from bench.torture_faults import FAULTS, HANGS, Cell, Ended, Fault, PrefectApi
from flows.cli.command import FAILED_ROWS
from schemas.load import load_config
from tasks.lake import Lake
from tasks.lake.names import KEY_FILE

# The columns of the table: the stages' commands, collect in its two halves.
STAGES = {
    "plan": ["plan"],
    "street": ["collect", "--set", "collect.satellite.enabled=false"],
    "satellite": ["collect"],
    **{name: [name] for name in ("curate", "review", "synthesize", "difficulty", "train", "evaluate")},
}
# As small as every stage still has work.
SETTINGS = {
    "plan.places": 10,
    "plan.countries": "[DE, FR, GB, US]",  # signs the offline world's models read well: every stage gets work
    "collect.panoramas": 0,
    "collect.photos": 2,
    "collect.satellite.size_px": 64,
    "curate.quality.kinds": "[photo]",
    "curate.judge.view_max_pixels": 300_000,
    "review.auto_approve": "true",
    "review.data_docs": "false",
    "synthesize.also": "[]",
    "synthesize.max_images": 3,
    "difficulty.policy": "answerer-base",
    "difficulty.k": 4,
    "evaluate.policies": "[answerer-base]",
    "train.sft.max_steps": 6,
    "train.cold_start.max_steps": 2,
    "train.grpo.max_steps": 2,
    "train.save_steps": 2,
    "services.client.backoff_s": 0.1,
    "services.client.max_attempts": 2,
    "services.client.outage_patience_s": 2,
}
KEY = "5eed" * 16  # image ids are keyed by the lake: to compare row by row, all lakes have the same key
HASTE = (1.0, 0.4, 0.1)  # a command that ended before it was struck is struck earlier
WITHOUT_MEANING = "–"


@dataclass
class Torture:
    """The undisturbed lake before and after every stage, and how long its steps took."""

    folder: Path
    lakes: Path
    world: str
    steps: dict[str, dict[str, float]] = field(default_factory=dict)

    def before(self, stage: str) -> Path:
        return self.lakes / f"before-{stage}"

    def after(self, stage: str) -> Path:
        return self.lakes / f"after-{stage}"

    def command(self, stage: str) -> list[str]:
        """The command of a stage, without its lake."""
        settings = {**SETTINGS, "offline.port": self.world.rpartition(":")[2]}
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "flows.cli", *STAGES[stage], "--profile", "offline", *options]

    def prepare(self, last: str) -> None:
        """Run the stages up to `last` once, undisturbed, as far as that was not done before."""
        lake, steps = self.lakes / "undisturbed", self.lakes / "steps.json"
        if steps.exists():
            self.steps = json.loads(steps.read_text())
        else:
            lake.mkdir(parents=True)
            (lake / KEY_FILE).write_text(KEY)
        for stage in list(STAGES)[len(self.steps) : list(STAGES).index(last) + 1]:
            if not self.before(stage).exists():
                shutil.copytree(lake, self.before(stage))
            began = time.monotonic()
            command = [*self.command(stage), "--lake", str(lake)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
            if done.returncode:
                raise SystemExit(
                    f"undisturbed, {stage} ended with {done.returncode}:\n{done.stderr[-3000:]}{done.stdout}"
                )
            self.steps[stage] = {name: float(seconds or 0) for name, seconds in ENDED.findall(done.stderr)}
            took = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.steps[stage].items())
            print(f"  undisturbed {stage}: {time.monotonic() - began:.0f} s ({took})", flush=True)
            shutil.copytree(lake, self.after(stage))
            steps.write_text(json.dumps(self.steps))

    def cell(self, fault: Fault, stage: str) -> str:
        """What was seen: `clean: …`, `NOT CLEAN: …`, or why the cell has no meaning."""
        if stage in fault.senseless:
            return f"{WITHOUT_MEANING} {fault.senseless[stage]}"
        began = time.monotonic()
        for haste in HASTE:
            try:
                wrong, seen, missed = self._try(fault, stage, haste)
            except Exception as error:  # noqa: BLE001 - one cell must not end the others
                wrong, seen, missed = [f"{type(error).__name__}: {error}"], "", False
            if not missed:
                break
        else:
            wrong.append("it always ended before it could be struck")
        text = f"NOT CLEAN: {'; '.join(wrong)}" if wrong else f"clean: {seen}"
        print(f"  {fault.name}, {stage}, {time.monotonic() - began:.0f} s: {text}", flush=True)
        return text

    def _try(self, fault: Fault, stage: str, haste: float) -> tuple[list[str], str, bool]:
        """(what is wrong, what was seen, whether the command had ended before it could be struck)."""
        folder = self.folder / f"{fault.name} {stage} {haste}".replace(" ", "-")
        folder.mkdir()
        step = max(self.steps[stage], key=lambda name: self.steps[stage][name])
        cell = Cell(
            stage, folder, self.before(stage), self.after(stage), self.command(stage), step, self.steps[stage][step],
            self.world, random.Random(f"{fault.name} {stage}"), haste=haste,
        )  # fmt: skip
        with cell.closing:
            first = fault.strike(cell)
            wrong, seen = judge_end(first, fault)
            if first.code or fault.is_told:
                again = cell.run()
                if again.code:
                    wrong.append(f"with the fault gone it ended with {again.code}: {last_line(again)}")
            lake = Lake(cell.lake)
            wrong += differences(Lake(cell.after, read_only=True), lake, fault.but_for)
            wrong += stray_files(lake) + unaccounted(lake)
        wrong += stray_processes(folder)
        if not wrong:
            shutil.rmtree(folder)
        return wrong, seen, cell.missed


def judge_end(ended: Ended, fault: Fault) -> tuple[list[str], str]:
    """(what is wrong with how a struck command ended, what was seen)."""
    if ended.code == -signal.SIGKILL:
        return [], "killed, went on"
    wrong = [f"it says {word!r}" for word in ("Traceback (most recent", "a bug in geofix") if word in ended.err]
    if ended.code == HANGS:
        return [*wrong, f"it hangs: {last_line(ended)}"], ""
    if ended.code == 0:
        return wrong, "went on"
    said = [line for line in ended.err.splitlines() if line.startswith(("geofix: ", "interrupted: "))]
    said += [line for line in ended.out.splitlines() if "failed and are retried by the next run" in line]
    if len(said) != 1:
        return [*wrong, f"exit code {ended.code} with {len(said)} lines that say why: {last_line(ended)}"], ""
    named = ended.out if ended.code == FAILED_ROWS else said[0]
    if not fault.names or not re.search(fault.names, named):
        wrong.append(f"its line does not name the fault and what to do: {named[-600:]}")
    return wrong, f'exit code {ended.code}, "{said[0]}"'


def last_line(ended: Ended) -> str:
    said = (ended.err + ended.out).strip().splitlines()
    return said[-1][:300] if said else "nothing was said"


def unaccounted(lake: Lake) -> list[str]:
    """Runs that ended and whose items do not add up."""
    sums = pl.col("kept") + pl.col("rejected") + pl.col("failed") != pl.col("items_in")
    wrong = lake.read("runs").filter(pl.col("status").str.starts_with("done"), sums)
    return [f"run {row['run_id']}: in is not kept + rejected + failed" for row in wrong.iter_rows(named=True)]


def table(seen: dict[tuple[str, str], str], faults: Sequence[str], stages: Sequence[str]) -> str:
    """Faults by stages in Markdown, and below it what was not clean, what was said and what has no meaning."""
    lines = [f"| fault | {' | '.join(stages)} |", f"|---{'|---' * len(stages)}|"]
    for fault in faults:
        words = [_short(seen.get((fault, stage), "not run")) for stage in stages]
        lines.append(f"| {fault} | {' | '.join(words)} |")
    notes: dict[str, list[str]] = {}
    for (fault, stage), text in seen.items():
        if text not in ("clean: went on", "clean: killed, went on"):
            notes.setdefault(f"{fault}: {text}", []).append(stage)
    return "\n".join([*lines, "", *(f"- {', '.join(where)}: {text}" for text, where in notes.items())])


def _short(text: str) -> str:
    """A cell of the table."""
    beginnings = {"clean: exit": "one line", "clean": "went on", WITHOUT_MEANING: WITHOUT_MEANING, "not run": "not run"}
    return next((word for begin, word in beginnings.items() if text.startswith(begin)), "**NOT CLEAN**")


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    faults = {fault.name: fault for fault in FAULTS}
    parser.add_argument("--fault", action="append", choices=faults, metavar="NAME", help=f"one of {', '.join(faults)}")
    parser.add_argument("--stage", action="append", choices=STAGES, metavar="NAME", help=f"one of {', '.join(STAGES)}")
    parser.add_argument("--jobs", type=int, default=2, help="cells at once")
    parser.add_argument("--out", type=Path, default=Path("torture.md"), help="where the table is written")
    parser.add_argument("--lakes", type=Path, help="where the undisturbed lakes are kept, and taken from if there")
    parser.add_argument("--keep", action="store_true", help="leave the lakes where they are")
    given = parser.parse_args(arguments)
    chosen, stages = given.fault or list(faults), [stage for stage in STAGES if stage in (given.stage or STAGES)]
    if any(faults[name].needs_mounts for name in chosen) and os.geteuid() != 0:
        again = [sys.executable, "-m", "bench.torture", *arguments]
        os.execvp("unshare", ["unshare", "--map-root-user", "--mount", *again])
    if not shutil.which("cc"):
        parser.error("there is no C compiler (cc), which the faults of the clock need")
    signal.signal(signal.SIGHUP, lambda *_: None)  # under nohup commands would inherit that it is ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers below end with us
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="geofix-torture-"))
    prefect = PrefectApi(folder)
    # One world and one Prefect server for all commands: a start costs more than the work of a small stage.
    size = load_config(profile="offline").offline.size
    with offline_server("--size", str(size), "--allow-remote", shared=True) as world:
        try:
            prefect.start()
            os.environ.update(prefect.variables)
            torture = Torture(folder, given.lakes or folder / "lakes", world.url)
            torture.prepare(stages[-1])
            cells = [(fault, stage) for fault in chosen for stage in stages]
            cells.sort(key=lambda one: faults[one[0]].alone)
            alone = [one for one in cells if faults[one[0]].alone]
            with ThreadPoolExecutor(given.jobs) as pool:
                beside = cells[: len(cells) - len(alone)]
                found = list(pool.map(lambda one: torture.cell(faults[one[0]], one[1]), beside))
            found += [torture.cell(faults[fault], stage) for fault, stage in alone]
        finally:
            prefect.stop()
    seen = dict(zip(cells, found, strict=True))
    text = table(seen, chosen, stages)
    given.out.write_text(f"{text}\n", encoding="utf-8")
    print(text)
    wrong = sum(one.startswith("NOT CLEAN") for one in found)
    senseless = sum(one.startswith(WITHOUT_MEANING) for one in found)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(found) - wrong - senseless} cells clean, {wrong} not, {senseless} without meaning; {minutes:.0f} min")
    if given.keep or wrong:
        print(f"lakes: {folder}")
    else:
        shutil.rmtree(folder)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
