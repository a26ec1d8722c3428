"""The pools of one run: brought up before a step asks them, put away when no later stage does."""

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from flows.display import display
from flows.order import roles_of, steps_of
from flows.servers import free_port
from schemas.config import Config
from schemas.errors import GeofixError, InputError
from schemas.settings.endpoint import is_loopback
from schemas.settings.models import TRAINED, pool_endpoint
from schemas.settings.pools import Pool
from tasks.lake import Lake
from tasks.runtime.calls import book_gpu_seconds, spent_usd
from tasks.runtime.on_ray.model_pools import (
    LEASE_S,
    Keepers,
    PoolPlan,
    check_gpus,
    check_python,
    open_keepers,
    pool_address,
)
from tasks.runtime.on_ray.start import start_ray
from tasks.runtime.on_ray.watch import nodes
from tasks.runtime.stage import ColumnStage
from tasks.services import BudgetExhausted

RENEW_S = LEASE_S / 6
SERVER = "infra.serve.server:served_app"  # of the engine `embedded`, imported by its replicas

logger = logging.getLogger("geofix.pools")


@dataclass
class _Up:
    """A pool that this run has brought up."""

    plan: PoolPlan
    booked_s: float = field(default_factory=time.monotonic)  # until when its GPU seconds are booked
    gpu_seconds: float = 0.0  # booked so far


class RunPools:
    """The pools of one run, none of them up at first. `config` is the run's, as the offline world has changed it."""

    def __init__(self, config: Config, lake: Lake, stages: Sequence[str], names: Collection[str] = ()) -> None:
        """Those that the stages ask, and those named."""
        self._config, self._lake, self._stages = config, lake, stages
        self._keepers: Keepers | None = None
        self._up: dict[str, _Up] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        wanted = {*names, *asked_pools(config, stages)} & config.models.pools.keys() if config.models.pools else set()
        self._plans = {name: pool_plan(name, config.models.pools[name], lake) for name in sorted(wanted)}
        private = config.spread.address is None
        self._port = free_port() if private and config.models.pools else config.models.pool_port

    @property
    def serves_trained(self) -> bool:
        """Whether trained models are served on the cluster: as the settings say, or since its workers need it."""
        spread = self._config.spread
        here = spread.submits_jobs and is_loopback(str(spread.address))  # one machine: jobs reach its loopback
        return TRAINED in self._config.models.pools or (spread.address is not None and not here)

    def check(self) -> None:
        """GeofixError, before anything starts, if a stage asks pools that the cluster cannot hold at once."""
        if not self._plans:
            return
        _refuse_jobs(self._config)
        check_python(self._plans.values(), self._config.spread)
        if any(plan.settings.gpus for plan in self._plans.values()):
            start_ray(self._config.spread)
            for stage in self._stages or [""]:
                together = asked_pools(self._config, [stage]) if stage else self._plans.keys()
                check_gpus(self.plans(together), nodes())

    def plans(self, names: Collection[str]) -> list[PoolPlan]:
        """The plans of these pools, in the order of their names."""
        return [plan for name, plan in self._plans.items() if name in names]

    def trained_plan(self, model_id: str, stored: str) -> PoolPlan:
        """The plan of a pool for a trained model of the lake."""
        _refuse_jobs(self._config)
        settings = self._config.models.pools.get(TRAINED)
        if settings is None:  # workers of a cluster cannot ask a server on this machine's loopback
            start_ray(self._config.spread)
            has_gpu = any(node.get("GPU", 0) >= 1 for node in nodes())
            settings = Pool(engine="embedded", gpus=1 if has_gpu else 0, usd_per_gpu_second=0)
        return _trained_plan(f"{TRAINED}-{model_id}"[:40], settings, self._lake, stored)

    def up(self) -> list[tuple[str, str, float]]:
        """(name, model, GPU seconds booked) of the pools that this run has up."""
        with self._lock:
            return [(pool.plan.name, pool.plan.model, pool.gpu_seconds) for pool in self._up.values()]

    def address(self, plan: PoolPlan) -> str:
        """Where workers ask a pool."""
        return pool_address(plan.application, self._config.spread, self._port)

    def configured(self, config: Config) -> Config:
        """The configuration with the run's pools as endpoints at their addresses."""
        if not self._plans:
            return config
        models = config.models
        endpoints = {
            name: pool_endpoint(plan.settings, plan.model, self.address(plan), plan.actors)
            for name, plan in self._plans.items()
        }
        left = {name: pool for name, pool in models.pools.items() if name not in endpoints}
        changed = {
            "endpoints": {**models.endpoints, **endpoints},
            "pools": left,
            "roles": {name: models.role(name) for name in models.roles},  # with the models of their pools
        }
        return config.model_copy(update={"models": models.model_copy(update=changed)})

    def ensure(self, plans: Iterable[PoolPlan]) -> None:
        """Bring up those that are not, and wait until all answer."""
        new = [plan for plan in plans if plan.application not in self._up]
        if not new:
            return
        self._refuse_spent(new)
        check_python(new, self._config.spread)
        if self._keepers is None:
            owner = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            self._keepers = open_keepers(self._config.spread, self._port, owner)
            threading.Thread(target=self._watch, name="pools", daemon=True).start()
        check_gpus([pool.plan for pool in self._up.values()] + new, nodes())
        for plan in new:  # all at once: a start takes minutes
            _say(f"pool {plan.name}: bringing up {plan.model} ({plan.settings.engine})")
            with self._lock:
                self._up[plan.application] = _Up(plan)
            self._keepers.bring_up(plan)
        for plan in new:
            self._keepers.wait(plan, _say)

    def put_away(self, kept: Collection[str] = ()) -> None:
        """Put away all but the named pools, and book what they took."""
        for application, pool in list(self._up.items()):
            if pool.plan.name in kept:
                continue
            assert self._keepers is not None, "a pool is up"
            self._book(pool)
            with self._lock:
                del self._up[application]
            self._keepers.release(pool.plan)
            logger.info("pool %s: put away", pool.plan.name)

    def put_away_before(self, stage: str) -> None:
        """Where a stage computes on GPUs itself, pools that it does not ask give theirs back."""
        steps = [step for step in steps_of(stage) if not isinstance(step, ColumnStage)]
        if any(step.resources.gpus or step.resources.gpu_where_any for step in steps):
            self.put_away(asked_pools(self._config, [stage]))

    def put_away_after(self, stage: str) -> None:
        """Pools that no later stage of the run asks."""
        later = self._stages[self._stages.index(stage) + 1 :] if stage in self._stages else ()
        self.put_away(asked_pools(self._config, later))

    def close(self) -> None:
        """Put everything away. A failure here must not hide that of the run: leases end by themselves."""
        self._ended.set()
        try:
            self.put_away()
        except GeofixError as error:
            logger.warning("a pool could not be put away, and goes when its lease ends (%.0f s): %s", LEASE_S, error)

    def _refuse_spent(self, plans: Sequence[PoolPlan]) -> None:
        budget = self._config.models.budget_usd
        if budget is None or not any(plan.settings.usd_per_gpu_second for plan in plans):
            return
        spent = spent_usd(self._lake)
        if spent >= budget:
            raise BudgetExhausted(
                f"the money budget is used up: ${spent:,.4f} of ${budget:,.2f} are spent on this lake, so pool "
                f"{plans[0].name} is not brought up; to go on, raise models.budget_usd (--budget)"
            )

    def _watch(self) -> None:
        """Beside the work: leases are renewed and GPU seconds booked, so that budgets see them."""
        while not self._ended.wait(RENEW_S):
            with self._lock:
                up = list(self._up.values())
            for pool in up:
                with contextlib.suppress(GeofixError):  # the step that asks the pool says what is wrong with it
                    assert self._keepers is not None
                    self._keepers.renew([pool.plan])
                    self._book(pool)

    def _book(self, pool: _Up) -> None:
        now_s, settings = time.monotonic(), pool.plan.settings
        seconds, pool.booked_s = now_s - pool.booked_s, now_s
        if not settings.gpus:
            return
        assert self._keepers is not None
        state = self._keepers.states([pool.plan]).get(pool.plan.application)
        replicas = max(settings.replicas[0], sum(state.replicas.values()) if state else 0)
        gpu_seconds = seconds * settings.gpus * replicas
        pool.gpu_seconds += gpu_seconds
        price = settings.usd_per_gpu_second
        book_gpu_seconds(
            self._lake, pool.plan.name, pool.plan.model, gpu_seconds, None if price is None else gpu_seconds * price
        )


def asked_pools(config: Config, stages: Sequence[str]) -> set[str]:
    """The pools that roles of these stages name."""
    return {config.models.role(role).endpoint for _, role in roles_of(config, stages)} & (
        config.models.pools.keys() - {TRAINED}
    )


def pool_plan(name: str, settings: Pool, lake: Lake) -> PoolPlan:
    """How a pool of the settings is brought up; InputError if its trained model is not in the lake."""
    kind, _, model_id = settings.model.partition(":")
    if kind != TRAINED or not model_id:
        return PoolPlan(name, settings, settings.model, settings.model, SERVER)
    models = lake.read("models")
    rows = models.filter(pl.col("model_id") == model_id)
    if rows.is_empty():
        known = ", ".join(models["model_id"].to_list()[-3:]) or "none"
        raise InputError(f"models.pools.{name}.model: the lake has no trained model '{model_id}'; its newest: {known}")
    plan = _trained_plan(name, settings, lake, rows["checkpoint"][-1])
    return PoolPlan(name, settings, settings.model, plan.source, SERVER)


def _trained_plan(name: str, settings: Pool, lake: Lake, stored: str) -> PoolPlan:
    if lake.blobs.is_local:
        folder = lake.blobs.pull(stored).absolute()
        return PoolPlan(name, settings, folder.name, str(folder), SERVER)
    if settings.engine == "embedded":
        raise InputError(f"models.pools.{name}: only engine vllm reads checkpoints from an object store ({lake.uri})")
    return PoolPlan(name, settings, stored.rstrip("/").rpartition("/")[2], lake.blobs.uri(stored), SERVER)


def _refuse_jobs(config: Config) -> None:
    if config.spread.submits_jobs:
        raise InputError(
            "spread.address: pools are brought up by a driver of the cluster: give host:port or ray://host:port "
            "instead of its dashboard"
        )


def _say(text: str) -> None:
    display.get().phase(text)
    logger.info("%s", text)


@contextlib.contextmanager
def pools_up(config: Config, lake: Lake, roles: Iterable[str]) -> Iterator[Config]:
    """The configuration with the pools of these roles up, for a command outside a flow."""
    names = {config.models.role(role).endpoint for role in roles} & (config.models.pools.keys() - {TRAINED})
    with contextlib.closing(RunPools(config, lake, (), names)) as pools:
        pools.check()
        pools.ensure(pools.plans(names))
        yield pools.configured(config)
