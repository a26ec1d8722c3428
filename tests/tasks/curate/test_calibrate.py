"""The judges against people's labels."""

from pathlib import Path

import numpy as np
import pytest

from schemas.errors import InputError
from tasks.curate.calibrate import COMBINED, best_threshold, calibrate, kappa, render
from tasks.lake import Commit, Lake


def filled(path: Path) -> Lake:
    """Twenty pictures: people call the first ten localizable; `good` errs on one, `bad` calls all localizable."""
    lake = Lake(path / "lake")
    rows = []
    for number in range(20):
        same = {"image_id": f"{number:04d}abcdef", "sha256": f"{number:064x}", "reason": "signs"}
        good = "localizable" if number < 11 else "non_localizable"
        rows.append({**same, "model": "good", "localizability": good, "score": 9.0 - number / 2})
        rows.append({**same, "model": "bad", "localizability": "localizable", "score": 9.0 - number / 4})
    rows.append({"image_id": "9999", "sha256": "9" * 64, "model": "good", "problem": "no_verdict"})
    lake.upsert("judgements", rows, Commit("r", 1))
    return lake


def labels(path: Path, lines: list[str], head: str = "image_id,localizable") -> Path:
    file = path / "labels.csv"
    file.write_text("\n".join([head, *lines]))
    return file


def test_precision_recall_kappa_and_the_best_threshold_with_intervals(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    file = labels(tmp_path, [f"{n:04d},{'yes' if n < 10 else 'no'}" for n in range(20)] + ["9999,no"])
    bad, good, both = calibrate(lake, file, "majority", 0.0)
    assert (bad.judge, good.judge, both.judge) == ("bad", "good", COMBINED)
    assert (good.pictures, good.recall.value) == (20, 1.0) and good.precision.value == pytest.approx(10 / 11)
    assert good.precision.low < 10 / 11 < good.precision.high < 1
    assert good.kappa.value == pytest.approx(0.9) and good.kappa.low < 0.9 < good.kappa.high
    assert (bad.precision.value, bad.recall.value, bad.kappa.value) == (0.5, 1.0, 0.0)
    assert bad.threshold.value == 9 - 9 / 4 and bad.kappa_at_threshold == 1.0  # its scores are right, its class is not
    [one] = good.differences
    assert (one.image_id, one.person, one.judge) == ("0010abcdef", "not localizable", "localizable")
    assert "view 0010abcdef" in render([good], lambda image_id: f"view {image_id}")
    stricter = calibrate(lake, file, "majority", 5.0)[1]
    assert stricter.recall.value == 0.9 and stricter.differences != ()


def test_kappa_of_nothing_to_tell_apart_is_agreement() -> None:
    yes = np.ones(5, bool)
    assert kappa(yes, yes) == 1 and kappa(yes, ~yes) == 0
    assert best_threshold(yes, yes, np.arange(5.0)) == 0


@pytest.mark.parametrize(
    ("lines", "head", "says"),
    [
        (["0001,perhaps"], "image_id,localizable", "line 2: localizable is 'perhaps'; write yes or no"),
        (["0001,yes"], "image,localizable", "it needs image_id or sha256, and localizable"),
        (["00,yes"], "image_id,localizable", "begins 20 image ids"),
        (["0001,yes", "0001a,no"], "image_id,localizable", "line 3: 0001a is labelled yes and no"),
        (["ffff,yes"], "image_id,localizable", "none of its pictures has a verdict"),
    ],
)
def test_bad_labels_are_refused_in_one_line(tmp_path: Path, lines: list[str], head: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibrate(filled(tmp_path), labels(tmp_path, lines, head), "majority", 0.0)
