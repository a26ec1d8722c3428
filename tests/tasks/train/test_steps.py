"""Training tells its steps while it goes on."""

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
