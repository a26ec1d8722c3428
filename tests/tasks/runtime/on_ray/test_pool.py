"""The pool's own bookkeeping, without Ray: every item comes back once, whatever dies."""

from bench.pool import SimulatedRay, measure


def test_every_item_comes_back_once_although_workers_die() -> None:
    backend = SimulatedRay(workers=50, seconds=0.002, deaths=0.02, start_s=0.1)
    found = measure(backend, 2_000)
    assert sorted(found.items) == sorted({f"n{k}" for k in range(2_000)})
    assert backend.killed > 10 and found.died <= 5


def test_an_item_whose_worker_dies_each_time_is_given_back_as_dead() -> None:
    found = measure(SimulatedRay(workers=3, seconds=0.001, deaths=1.0, start_s=0), 5)
    assert sorted(found.items) == [f"n{k}" for k in range(5)] and found.died == 5
