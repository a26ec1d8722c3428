"""Pools on the cluster: what is asked of Serve, who may put a pool away, and what the nodes must have."""

import time
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError

from schemas.errors import GeofixError
from schemas.settings.pools import Pool
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray import model_pools
from tasks.runtime.on_ray.model_pools import Keepers, PoolPlan, _keeper_class, check_gpus, check_python, pool_address


def plan(**settings: Any) -> PoolPlan:
    return PoolPlan("eyes", Pool(model="hub/eyes", **settings), "hub/eyes", "hub/eyes")


def test_vllm_is_told_what_the_settings_say_and_what_every_pool_needs() -> None:
    options = plan(
        gpus=4, tensor_parallel=2, replicas=(1, 3), engine_args={"max_model_len": 99, "tool_call_parser": None}
    ).options()
    assert options["bundles"] == [{"CPU": 1.0, "GPU": 2.0}] * 2
    assert options["replicas"] == {"autoscaling_config": {"min_replicas": 1, "max_replicas": 3}}
    arguments = options["engine_args"]
    assert arguments["tensor_parallel_size"] == 2 and arguments["max_model_len"] == 99
    assert "tool_call_parser" not in arguments and "dtype" not in arguments
    on_cpus = plan(gpus=0).options()
    assert on_cpus["engine_args"]["dtype"] == "float32" and on_cpus["bundles"] == [{"CPU": 1.0}]


def test_an_application_is_named_by_what_it_serves_not_by_its_price() -> None:
    assert plan(usd_per_gpu_second=1).application == plan(start_s=5, python="/opt/python").application
    assert plan(gpus=2).application != plan(gpus=1).application


def test_the_address_follows_from_that_of_the_cluster() -> None:
    for address in ("head:6379", "ray://head:10001", "http://head:8265"):
        assert (
            pool_address("geofix-eyes-1", SpreadSettings(address=address), 8000) == "http://head:8000/geofix-eyes-1/v1"
        )
    assert pool_address("geofix-eyes-1", SpreadSettings(), 123) == "http://127.0.0.1:123/geofix-eyes-1/v1"


def test_pools_share_the_gpus_of_the_nodes_and_a_worker_lies_on_one() -> None:
    check_gpus([plan(gpus=0.5), plan(gpus=0.5)], [{"GPU": 1}])
    check_gpus([plan(gpus=4, tensor_parallel=4)], [{"GPU": 2}, {"GPU": 2}])
    with pytest.raises(
        GeofixError, match=r"models\.pools\.eyes needs 1 x 2 GPUs, and the cluster has 1 \+ 1 in 2 nodes"
    ):
        check_gpus([plan(gpus=2)], [{"GPU": 1}, {"GPU": 1}])
    with pytest.raises(GeofixError, match="the cluster has none in 1 nodes"):
        check_gpus([plan()], [{"CPU": 8}])


def test_a_missing_engine_is_said_with_what_installs_it() -> None:
    with pytest.raises(GeofixError, match=r"there is no Python with vLLM at /nowhere/python: `make vllm` installs it"):
        check_python([plan(python="/nowhere/python")], SpreadSettings())
    check_python([plan(python="/nowhere/python")], SpreadSettings(address="head:6379"))  # it lies on the nodes


@dataclass
class Application:
    status: str = "RUNNING"
    message: str = ""
    deployments: dict[str, Any] = field(default_factory=dict)


@dataclass
class FakeServe:
    applications: dict[str, Application] = field(default_factory=dict)
    begun: int = 0

    def run_many(self, targets: list[Any], **_: Any) -> None:
        self.begun += 1
        self.applications[targets[0].name] = Application()

    def delete(self, name: str) -> None:
        del self.applications[name]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    fake = FakeServe()
    monkeypatch.setattr(serve, "status", lambda: fake)
    monkeypatch.setattr(serve, "start", lambda **_: None)
    monkeypatch.setattr(serve, "run_many", fake.run_many)
    monkeypatch.setattr(serve, "delete", fake.delete)
    return fake


def test_commands_share_a_pool_the_last_one_puts_it_away_and_a_killed_ones_lease_ends(served: FakeServe) -> None:
    keeper = _keeper_class()(0.05)
    options = plan(engine="embedded", gpus=0).options()

    def bring_up(owner: str, lease_s: float) -> None:
        keeper.bring_up(owner, lease_s, "geofix-eyes-1", {"host": "127.0.0.1", "port": 1}, options)

    bring_up("first", 600.0)
    bring_up("second", 600.0)
    assert served.begun == 1
    keeper.release("first", "geofix-eyes-1")
    assert keeper.states()["geofix-eyes-1"]["status"] == "RUNNING", "the second command asks it still"
    keeper.release("second", "geofix-eyes-1")
    assert served.applications == {}

    bring_up("by hand", float("inf"))
    bring_up("killed", 0.1)
    time.sleep(0.5)
    assert "geofix-eyes-1" in served.applications, "started by hand: stays until it is stopped"
    keeper.stop("geofix-eyes-1")
    bring_up("killed", 0.1)
    until_s = time.monotonic() + 30
    while served.applications:
        assert time.monotonic() < until_s, "a killed command holds GPUs"
        time.sleep(0.05)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Answers of a keeper, in place of Ray's."""
    answers = Mock()
    monkeypatch.setattr(model_pools.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(model_pools.ray, "get", answers)
    monkeypatch.setattr(model_pools.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Keepers, "_keeper", lambda self, python: self._keepers.setdefault(python, Mock()))
    return answers


def test_a_keeper_on_a_lost_node_is_asked_until_ray_has_noticed(asked: Mock) -> None:
    gone = ActorUnavailableError("connection refused", None)
    asked.side_effect = [gone, gone, gone, ActorDiedError(), "up"]
    assert Keepers(SpreadSettings(), 8000, "me")._call(plan(), "state") == "up"


def test_a_keeper_that_dies_twice_is_one_line(asked: Mock) -> None:
    asked.side_effect = [ActorDiedError(), ActorDiedError()]
    with pytest.raises(GeofixError, match=r"models\.pools\.eyes: Ray could not run .* on its nodes"):
        Keepers(SpreadSettings(), 8000, "me")._call(plan(), "state")
