"""How long many items take, from a few: against queues whose times are known."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.collect.forecast.tempo import Stretch, Tempo, in_stretches, side_by_side, tempo_of

seconds = st.floats(0.0, 10.0)


def stretch(items: int, at_once: float, waiting_s: float, full_s: float) -> Stretch:
    """As an ideal queue would give it: wall = items * (waiting / at_once + full)."""
    wall_s = items * (waiting_s / at_once + full_s)
    return Stretch(items, wall_s, wall_s * at_once)


def test_by_hand() -> None:
    # 10 s for 5 items, 4 at once: 2 s each. 9 s for 6 items, 12 at once: 1.5 s each.
    # 2 = w / 4 + f and 1.5 = w / 12 + f: w = 3, f = 1.25.
    found = tempo_of([Stretch(5, 10.0, 40.0), Stretch(6, 9.0, 108.0)])
    assert (found.waiting_s, found.full_s) == (pytest.approx(3.0), pytest.approx(1.25))
    assert found.seconds(100, 30) == pytest.approx(100 * (3 / 30 + 1.25))
    assert found.seconds(2, 30) == pytest.approx(2 * 1.25 + 3)  # no more at once than there are
    assert found.seconds(0, 30) == 0


@given(st.floats(0.01, 10.0), st.floats(0.01, 10.0), st.integers(1, 50), st.integers(1, 50))
def test_two_stretches_of_a_queue_give_its_numbers(waiting_s: float, full_s: float, few: int, many: int) -> None:
    found = tempo_of([stretch(few, 3, waiting_s, full_s), stretch(many, 16, waiting_s, full_s)])
    assert found.waiting_s == pytest.approx(waiting_s, rel=1e-6) and found.full_s == pytest.approx(full_s, rel=1e-6)


def test_all_waiting_and_all_full() -> None:
    waits = tempo_of([stretch(8, 4, 1.0, 0.0), stretch(16, 16, 1.0, 0.0)])
    assert waits.seconds(600, 100) == pytest.approx(6.0)
    full = tempo_of([stretch(8, 4, 0.0, 0.5), stretch(16, 16, 0.0, 0.5)])
    assert full.seconds(600, 100) == pytest.approx(300.0)


@given(st.lists(st.builds(Stretch, st.integers(1, 40), st.floats(0.001, 50.0), st.floats(0.001, 500.0)), max_size=5))
def test_neither_number_is_ever_negative_nor_time_shorter_for_more_items(stretches: list[Stretch]) -> None:
    found = tempo_of(stretches)
    assert found.waiting_s >= 0 and found.full_s >= 0
    assert found.seconds(10, 4) <= found.seconds(20, 4) + 1e-9
    assert found.seconds(20, 8) <= found.seconds(20, 4) + 1e-9


def test_one_stretch_says_what_was() -> None:
    assert tempo_of([Stretch(5, 10.0, 20.0)]) == Tempo(full_s=2.0)
    assert tempo_of([]) == Tempo()
    # Nonsense of a busy machine: the more at once, the slower.
    assert tempo_of([Stretch(5, 5.0, 20.0), Stretch(5, 10.0, 160.0)]) == Tempo(full_s=2.0)


@given(st.integers(1, 300), st.integers(1, 64))
def test_stretches_are_all_items_and_never_too_many_at_once(count: int, at_once: int) -> None:
    parts = in_stretches(count, at_once)
    assert sum(items for items, _ in parts) == count and parts[0] == (1, 1)
    assert all(items > 0 and 1 <= beside <= max(at_once, 1) for items, beside in parts)


def test_no_more_side_by_side_than_allowed() -> None:
    under_way, most = 0, 0

    async def work(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return 2 * item

    results, found = asyncio.run(side_by_side(range(9), work, 3))
    assert results == [0, 2, 4, 6, 8, 10, 12, 14, 16] and most == 3
    assert found.items == 9 and found.wall_s > 0 and found.busy_s > 0


def test_a_service_that_is_full_only_with_many_at_once_is_seen_by_those() -> None:
    # 4 s of waiting, and a service that does 7 a second at most: full from 28 at once on.
    def took(items: int, at_once: int) -> Stretch:
        each_s = max(4.0 / at_once, 1 / 7)
        return Stretch(items, items * each_s, items * each_s * at_once)

    found = tempo_of([took(8, 4), took(15, 16), took(24, 64), took(48, 64)])
    assert found.seconds(600, 128) == pytest.approx(600 / 7, rel=0.2)
