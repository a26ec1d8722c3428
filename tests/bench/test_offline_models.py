"""What the report on the offline chat models says of calibration, clues and ranges."""

from typing import Any

from bench.offline_models import Measured, report


def test_the_report_measures_calibration(capsys: Any) -> None:
    def rows(said: float, right: int) -> list[Measured]:
        errors = [1.0] * right + [999.0] * (10 - right)
        return [Measured("first", "yes", {"m": error}, [error] * 8, {"m": said}) for error in errors]

    report(rows(0.8, 8) + rows(0.1, 1))
    assert "answers that say 0.80: 0.80 are right, of 10" in (told := capsys.readouterr().out)
    assert "expected calibration error     0.00  (0 to 0.05: holds)" in told
    report(rows(0.9, 5) + rows(0.1, 1))
    assert "expected calibration error     0.20  (0 to 0.05: DOES NOT HOLD)" in capsys.readouterr().out


def test_the_report_wants_more_answers_right_where_clues_are_more(capsys: Any) -> None:
    def rows(clues: str, right: int) -> list[Measured]:
        errors = [20.0] * right + [999.0] * (10 - right)
        return [Measured("first", "yes", {"m": error}, [error] * 8, {"m": 0.5}, clues=clues) for error in errors]

    report(rows("rich", 7) + rows("none", 1) + rows("some", 4))
    assert "clues some         <1 km 0 %  <25 km 40 %" in (told := capsys.readouterr().out)
    assert "least gain by a grade of clues 0.22  (0 or more: holds)" in told
    report(rows("none", 1) + rows("weak", 3) + rows("rich", 2))
    assert "least gain by a grade of clues -0.07  (0 or more: DOES NOT HOLD)" in capsys.readouterr().out


def test_the_report_says_what_does_not_hold(capsys: Any) -> None:
    def row(passes: int) -> Measured:
        trials = [0.5] * passes + [9000.0] * (8 - passes)
        single = {"answerer-small": 1.0, "answerer-large": 1.0}
        return Measured("first", "localizable", single, trials, dict.fromkeys(single, 0.5))

    assert not report([row(8)] * 10)
    assert "learnable at 1 km              0.00  (0.25 to 0.5: DOES NOT HOLD)" in capsys.readouterr().out
    report([row(4)] * 4 + [row(0)] * 6)
    assert "learnable at 25 km             0.40  (0.25 to 0.5: holds)" in capsys.readouterr().out
