"""Which requests are answered together, and with whose seed."""

from infra.serve.batcher import shared_seed


def test_a_request_alone_keeps_its_seed_and_several_share_one_that_follows_from_all() -> None:
    assert shared_seed([7]) == 7 and shared_seed([None]) is None and shared_seed([None, None]) is None
    together = shared_seed([1, 2])
    assert together == shared_seed([1, 2]) and together not in (1, 2, shared_seed([2, 1]), shared_seed([1, 3]))
