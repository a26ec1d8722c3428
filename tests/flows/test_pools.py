"""Pools of a run: up before the first step that asks them, away when no later stage does, their GPU seconds booked."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.offered import check_models, refuse_unpriced
from flows.order import services_of, steps_of
from flows.pools import RunPools, asked_pools
from flows.session import Session
from flows.stages import with_pools
from schemas.config import Config, section_of
from schemas.errors import GeofixError, InputError
from schemas.load import ConfigError, load_config
from tasks.lake import Lake
from tasks.runtime.calls import commit_calls, spent_usd
from tasks.runtime.on_ray.model_pools import PoolPlan, PoolState
from tasks.services import BudgetExhausted, connect

STAGES = ["curate", "review", "synthesize", "train", "evaluate"]


@dataclass
class FakeKeepers:
    """Ray Serve that does at once what it is told, and remembers it."""

    told: list[str] = field(default_factory=list)

    def bring_up(self, plan: PoolPlan) -> None:
        self.told.append(f"up {plan.name}")

    def wait(self, plan: PoolPlan, say: Any) -> None:
        say(f"pool {plan.name}: ready")

    def renew(self, plans: list[PoolPlan]) -> None:
        self.told += [f"renew {plan.name}" for plan in plans]

    def release(self, plan: PoolPlan) -> None:
        self.told.append(f"away {plan.name}")

    def states(self, plans: list[PoolPlan]) -> dict[str, PoolState]:
        return {plan.application: PoolState("RUNNING", "", {"RUNNING": 2}) for plan in plans}


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> FakeKeepers:
    fake = FakeKeepers()
    monkeypatch.setattr("flows.pools.open_keepers", lambda *_: fake)
    monkeypatch.setattr("flows.pools.start_ray", lambda _: None)
    monkeypatch.setattr("flows.pools.nodes", lambda: [{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 1}])
    monkeypatch.setattr("flows.pools.check_python", lambda *_: None)
    return fake


def configured(**pools: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "models": {
                "pools": {name: {"model": f"hub/{name}", **settings} for name, settings in pools.items()},
                "roles": {"judge": {"endpoint": "eyes"}, "planner": {"endpoint": "eyes"}},
                "budget_usd": 1.0,
            }
        }
    )


def test_roles_with_one_pool_share_it_and_are_asked_of_its_model(tmp_path: Path, keepers: FakeKeepers) -> None:
    config = configured(eyes={"usd_per_gpu_second": 0.001})
    assert asked_pools(config, ["curate"]) == {"eyes"} and asked_pools(config, ["train"]) == set()
    pools = RunPools(config, Lake(tmp_path / "lake"), STAGES)
    reachable = pools.configured(config)
    models = connect(reachable.services, {}, (), reachable.models, ()).chat.models
    for role in ("judge", "planner"):
        target = models.target(role, "chat")
        assert (target.endpoint, target.model, target.is_free) == ("eyes", "hub/eyes", True)
    base_url = reachable.models.endpoints["eyes"].base_url
    assert base_url.startswith("http://127.0.0.1:") and base_url.endswith("/v1")
    assert Config.model_validate_json(reachable.model_dump_json()) == reachable, "a job is given it as JSON"


def test_the_address_is_one_that_other_nodes_reach(tmp_path: Path, keepers: FakeKeepers) -> None:
    config = configured(eyes={}).model_copy(
        update={"spread": Config.model_validate({"spread": {"address": "ray://head:10001"}}).spread}
    )
    pools = RunPools(config, Lake(tmp_path / "lake"), STAGES)
    [plan] = pools.plans(["eyes"])
    assert pools.address(plan) == f"http://head:8000/{plan.application}/v1"
    assert pools.serves_trained, "also without a pool for them: a worker elsewhere cannot ask this machine's loopback"


def test_pools_are_up_once_and_away_before_training_and_after_the_last_stage_that_asks(
    tmp_path: Path, keepers: FakeKeepers
) -> None:
    config = configured(eyes={})
    pools = RunPools(config, Lake(tmp_path / "lake"), STAGES)
    pools.check()
    for _ in range(2):
        pools.ensure(pools.plans(["eyes"]))
    pools.put_away_after("curate")
    assert keepers.told == ["up eyes"], "synthesize asks it again"
    pools.put_away_after("synthesize")
    pools.put_away_before("train")
    assert keepers.told == ["up eyes", "away eyes"]
    pools.ensure(pools.plans(["eyes"]))
    pools.put_away_before("train")
    pools.close()
    assert keepers.told == ["up eyes", "away eyes"] * 2, "training has the GPUs to itself"


def test_a_step_that_asks_a_pool_has_it_up_before_its_services_are_asked(tmp_path: Path, keepers: FakeKeepers) -> None:
    config = configured(eyes={"usd_per_gpu_second": 0.001})
    lake = Lake(tmp_path / "lake")
    pools = RunPools(config, lake, STAGES)
    session = Session(pools.configured(config), lake, pools=pools)
    steps = {step.name: step for step in steps_of("curate")}
    context = session.context(session.config, services_of(config, ["curate"]), lambda: keepers.told.append("world"))
    for name, told in (("curate.address", ["world"]), ("curate.judge", ["world", "up eyes"])):
        keepers.told.clear()
        settings = section_of(session.config, steps[name].section or "curate")
        with_pools(session, steps[name], settings, context).ready()
        assert keepers.told == told
    pools.close()


def test_gpu_seconds_are_booked_and_the_budget_holds_for_them(tmp_path: Path, keepers: FakeKeepers) -> None:
    lake = Lake(tmp_path / "lake")
    pools = RunPools(configured(eyes={"gpus": 1, "usd_per_gpu_second": 1e6}), lake, STAGES)
    pools.ensure(pools.plans(["eyes"]))
    pools.put_away()
    commit_calls(lake)
    [row] = lake.read("calls").to_dicts()
    assert (row["role"], row["model"], row["verdict"], row["requests"]) == ("pool:eyes", "hub/eyes", "gpu_seconds", 0)
    assert row["seconds"] > 0 and row["cost_usd"] == pytest.approx(row["seconds"] * 1e6)
    assert spent_usd(lake) == pytest.approx(row["cost_usd"]) and row["cost_usd"] > 1.0
    with pytest.raises(BudgetExhausted, match=r"pool eyes is not brought up; to go on, raise models\.budget_usd"):
        pools.ensure(pools.plans(["eyes"]))
    pools.close()
    assert keepers.told == ["up eyes", "away eyes"]


def test_a_budget_wants_the_price_of_gpu_seconds() -> None:
    refuse_unpriced(configured(eyes={"usd_per_gpu_second": 0.001}), ["curate"])
    with pytest.raises(InputError, match=r"pool 'eyes' costs is not known: give models\.pools\.eyes\.usd_per_gpu_s"):
        refuse_unpriced(configured(eyes={}), ["curate"])


def test_too_few_gpus_are_said_in_one_line_before_anything_starts(tmp_path: Path, keepers: FakeKeepers) -> None:
    pools = RunPools(configured(eyes={"gpus": 4, "tensor_parallel": 4}), Lake(tmp_path / "lake"), STAGES)
    with pytest.raises(GeofixError, match=r"models\.pools\.eyes needs 1 x 4 GPUs, and the cluster has 2 \+ 1 in 2 nod"):
        pools.check()
    assert keepers.told == []


def test_a_trained_model_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"models": {"pools": {"own": {"model": "trained:m7"}}, "roles": {"judge": {"endpoint": "own"}}}}
    )
    with pytest.raises(InputError, match=r"models\.pools\.own\.model: the lake has no trained model 'm7'"):
        RunPools(config, Lake(tmp_path / "lake"), STAGES)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("models.pools.Eyes.model", "a/b", "lower-case letters"),
        ("models.pools.chat.model", "a/b", "is the name of an endpoint"),
        ("models.pools.eyes.replicas", "[3, 1]", "in order"),
        ("models.pools.eyes.model", "trained", "belongs to the pool 'trained'"),
        ("models.roles.judge.endpoint", "ears", "there is no endpoint 'ears'"),
    ],
)
def test_wrong_settings_name_field_and_fix(key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(overrides=["models.pools.other.model=a/b", f"{key}={value}"])


def test_a_role_of_a_pool_is_listed_and_its_name_is_not_looked_for_at_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--set", "models.pools.eyes.model=hub/eyes", "--set", "models.roles.judge.endpoint=eyes"]
    told = CliRunner().invoke(app, ["models", "--dry-run", "--json", *options])
    [judge] = [one for one in json.loads(told.stdout) if one["role"] == "judge"]
    assert (judge["model"], judge["base_url"]) == ("hub/eyes", "a pool on the cluster")
    check_models(configured(eyes={}), ["curate"])  # would wait for a server that is not up


def test_the_command_shows_pools_and_refuses_to_start_one_on_a_ray_that_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--set", "models.pools.eyes.model=hub/eyes", "--set", "models.roles.judge.endpoint=eyes"]
    told = CliRunner().invoke(app, ["pools", "--json", *options])
    [eyes] = json.loads(told.stdout)
    assert (eyes["pool"], eyes["roles"], eyes["state"], eyes["replicas"]) == ("eyes", ["judge"], "not up", "0 of 1")
    refused = CliRunner().invoke(app, ["pools", "start", "eyes", *options])
    assert refused.exit_code != 0 and "spread.address names no cluster" in refused.stderr
    unknown = CliRunner().invoke(app, ["pools", "start", "ears", *options])
    assert "models.pools names no 'ears'; it names eyes" in unknown.stderr
