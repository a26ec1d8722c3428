"""The figures command works, and a small world keeps its bounds."""

from bench.offline_world import MEMORY_MB, measure


def test_figures_of_a_small_world():
    found = measure(size=200, requests=60, only_metadata=True)
    assert found.start_cpu_s > 0 and found.rate_wall > 0 and found.rate_cpu > 0
    assert 100 < found.rss_started_mb <= found.rss_most_mb < MEMORY_MB
    assert len(found.rows()) == 6
