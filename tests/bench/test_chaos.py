"""Where kills are dealt to, and how a stage's end is told from what a command says."""

from hypothesis import given
from hypothesis import strategies as st

from bench.chaos import ENDED, deal
from flows.cli.progress import summary
from tasks.runtime.items.outcome import Tick


@given(st.integers(0, 60), st.lists(st.text("abc", min_size=1), min_size=1, max_size=15, unique=True))
def test_kills_are_dealt_evenly_and_in_order(kills: int, stages: list[str]) -> None:
    dealt = deal(kills, stages)
    assert len(dealt) == kills and dealt == sorted(dealt, key=stages.index)
    times = [dealt.count(stage) for stage in stages]
    assert max(times) - min(times) <= 1


def test_a_stages_last_line_is_known() -> None:
    ticks = [
        Tick("collect.recheck", 0, 0, finished=True),
        Tick("plan", 6, 6, finished=True),
        Tick("collect", 6, 2, 1, 2, 1, 12.34, True),
        Tick("train.cold_start", 5, 0, 5, 0, 0, 0.2, True),
        Tick("train.sft", 1, 0, 1, 0, 0, 31.5, True),
    ]
    said = "\n".join(["collect: 2 of 6  0.1/s, 3 s left", *map(summary, ticks), "snapshot x approved by rule"])
    assert ENDED.findall(said) == [
        ("collect.recheck", ""),
        ("plan", ""),
        ("collect", "12.3"),
        ("train.cold_start", "0.2"),
        ("train.sft", "31.5"),
    ]
