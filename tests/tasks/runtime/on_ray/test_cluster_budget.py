"""One day's budget for workers on different nodes. The minute's, and more kills: `python -m bench.cluster_budget`."""

from collections.abc import Iterator

import pytest
import ray

from bench.cluster_budget import Trial, counting_actor, most_in_a_window, trial_of
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.errors import GeofixError
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.on_ray.start import stop_ray

PER_DAY = 12
pytestmark = pytest.mark.slow  # starts a cluster of two nodes; test_shared_budget.py has the actor on one


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    with (
        serving(create_app(World(seed=7, size=50), warm=False)) as url,
        trial_of(1, url, tmp_path_factory.mktemp("cluster"), head_cpus=1) as made,
    ):
        yield made


def test_the_days_budget_is_one_for_all_nodes_over_a_killed_actor_and_a_restart(trial: Trial) -> None:
    killed: list[int] = []

    def kill_once(tick: Tick) -> None:
        if tick.done and not killed:
            ray.kill(counting_actor(), no_restart=False)  # its process at once, as SIGKILL would
            killed.append(1)

    first = trial.run("day", PER_DAY // 2, kill_once, requests_per_day=PER_DAY)
    assert isinstance(first, StageResult) and first.kept == PER_DAY // 2
    assert killed, "the actor that counts was there to be killed"
    stop_ray()  # the next run joins as another command would
    rest = trial.run("day", 2 * PER_DAY, requests_per_day=PER_DAY)
    assert isinstance(rest, StageResult) and dict(rest.failures) == {"quota": rest.failed}
    asked = len(trial.asked())
    # What the actor had granted when it was killed, and nobody had heard of yet, is lost; never is there more.
    assert first.kept + rest.kept == asked <= PER_DAY and rest.failed == 2 * PER_DAY - asked
    assert len(trial.nodes_at("day")) == trial.nodes == 2, "workers on both nodes were answered"


def test_without_the_actor_nothing_is_asked_and_nobody_hangs(trial: Trial) -> None:
    ended: list[int] = []

    def end_for_good(tick: Tick) -> None:
        if tick.done and not ended:
            ray.kill(counting_actor(), no_restart=True)
            ended.append(1)

    error = trial.run("gone", 60, end_for_good, requests_per_minute=600)
    assert isinstance(error, GeofixError) and "does not answer" in str(error) and "run the same command" in str(error)
    assert 0 < len(trial.asked()) < 60
    rest = trial.run("gone", 60, requests_per_minute=60_000)
    assert isinstance(rest, StageResult) and rest.kept and rest.skipped + rest.kept == 60


def test_the_most_in_a_window() -> None:
    assert most_in_a_window([], 60) == 0
    assert most_in_a_window([0, 10, 59.9, 60, 61, 200], 60) == 4
    assert most_in_a_window([5.0] * 7, 1) == 7
