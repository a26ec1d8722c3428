"""Training tells its steps while it goes on."""

import os
import time
from pathlib import Path

from tasks.runtime.steps import StepFile, Steps


def test_a_damaged_or_unwritable_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("a file where the folder should be")
    file = StepFile(tmp_path, "train.sft")
    file.write(Steps(1, 2))
    assert file.read() is None
    other = StepFile(tmp_path / "other", "train.sft")
    other.write(Steps(1, 2))
    other.path.write_text("{")
    assert other.read() is None


def test_a_file_of_this_run_is_read_though_the_clock_of_files_is_coarse(tmp_path: Path) -> None:
    file = StepFile(tmp_path, "train.sft")
    since = time.time()
    file.write(Steps(1, 2))
    os.utime(file.path, (since - 0.009, since - 0.009))  # seen: up to one tick of the kernel behind time.time()
    assert file.read(since) == Steps(1, 2)
    os.utime(file.path, (since - 1, since - 1))
    assert file.read(since) is None, "that of an earlier run stays unread"
