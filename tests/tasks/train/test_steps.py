"""Training tells its steps while it goes on."""

from pathlib import Path
from types import SimpleNamespace

from tasks.runtime.steps import StepFile, Steps
from tasks.train.job import ReportSteps


def test_every_step_is_told_with_its_figure(tmp_path: Path) -> None:
    file = StepFile(tmp_path, "train.sft")
    told = ReportSteps(file.write)
    assert file.read() is None
    told.on_train_begin(None, SimpleNamespace(global_step=0, max_steps=60), None)
    assert file.read() == Steps(0, 60)
    told.on_log(None, SimpleNamespace(global_step=3, max_steps=60), None, logs={"loss": 2.34567, "epoch": 1})
    assert file.read() == Steps(3, 60, "loss 2.35")
    told.on_log(None, SimpleNamespace(global_step=60, max_steps=60), None, logs={"train_runtime": 9.0})
    assert file.read() == Steps(3, 60, "loss 2.35"), "the closing log has no figure of its own"
    told.on_log(None, SimpleNamespace(global_step=4, max_steps=10), None, logs={"loss": 0.0, "reward": 0.125})
    assert file.read() == Steps(4, 10, "loss 0, reward 0.125")


def test_a_damaged_or_unwritable_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("a file where the folder should be")
    file = StepFile(tmp_path, "train.sft")
    file.write(Steps(1, 2))
    assert file.read() is None
    other = StepFile(tmp_path / "other", "train.sft")
    other.write(Steps(1, 2))
    other.path.write_text("{")
    assert other.read() is None
