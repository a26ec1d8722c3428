"""Pools of served models: Ray Serve applications that are brought up on the cluster, waited for and put away.

vLLM cannot be installed beside Prefect: they want different versions of FastAPI. So Serve is called by an actor, the
keeper, that Ray starts with the Python of the engine's environment (`runtime_env.py_executable`), and what it deploys
inherits that environment. Ray and Python must have the same versions there and here; geofix need not be installed.

The keeper lives on the cluster and knows which commands use a pool. A command renews its leases while it runs; a pool
that none has renewed for LEASE_S is put away, so that a killed command does not hold GPUs.
"""

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from schemas.errors import GeofixError
from schemas.settings.pools import NAMESPACE, VLLM_PYTHON, Pool
from schemas.settings.spread import SpreadSettings
from tasks.runtime.items.identity import digest
from tasks.runtime.on_ray.engine_actor import engine_actor_class
from tasks.runtime.on_ray.start import split_address, start_ray

LEASE_S = 180.0
SWEEP_S = 15.0  # between two looks for leases that have ended
LOOK_EVERY_S = 2.0
NOTICE_S = 60.0  # Ray takes up to half a minute to notice that a node is lost
CALL_S = 600.0  # for a call of the keeper: its process imports Serve first, and starts it
# Of Serve's controller, which is started by the keeper: its 5 s are too short for a proxy that has to import first.
PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}
HEAD = "node:__internal_head__"  # a resource that only the head of a cluster has
# Of every vLLM pool, unless `engine_args` says otherwise: what `geofix serve --engine vllm` gives as well.
ENGINE_ARGS: dict[str, Any] = {
    "limit_mm_per_prompt": {"image": 16},
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}

# In their place, of a pool that is queried through Ray: pictures are prepared side by side, and none comes twice.
RAY_ARGS: dict[str, Any] = {"limit_mm_per_prompt": {"image": 16}, "renderer_num_workers": 4, "mm_processor_cache_gb": 0}

logger = logging.getLogger("geofix.pools")


def vllm_python(python: str | None) -> str:
    """The Python of vLLM's environment on this machine."""
    return python or os.environ.get(VLLM_PYTHON) or str(Path(".venv-vllm/bin/python").absolute())


@dataclass(frozen=True)
class PoolPlan:
    """A pool as it is brought up."""

    name: str
    settings: Pool
    model: str  # the name that requests give
    source: str  # hub name or folder
    server: str = ""  # of the engine `embedded`: the function (folder, model, host) -> ASGI application, as module:name

    @property
    def application(self) -> str:
        """Its name in Ray Serve and in its address: pools of one name and other settings do not meet."""
        by_ray = ["ray"] if self.settings.transport == "ray" else []
        return f"geofix-{self.name}-{digest(self.settings.identity(), self.model, self.source, *by_ray)[:8]}"

    @property
    def actors(self) -> tuple[str, ...]:
        """The actors of a pool that is queried through Ray."""
        count = self.settings.replicas[0] if self.settings.transport == "ray" else 0
        return tuple(f"{self.application}-{number}" for number in range(count))

    @property
    def python(self) -> str | None:
        """The Python of its engine; None: that of the nodes."""
        if self.settings.python or self.settings.engine == "embedded":
            return self.settings.python
        return vllm_python(None)

    def options(self) -> dict[str, Any]:
        """What the keeper builds the application of: plain values, since it may run where geofix is not installed."""
        pool, (least, most) = self.settings, self.settings.replicas
        own = RAY_ARGS if pool.transport == "ray" else ENGINE_ARGS
        own = own | ({} if pool.gpus else {"dtype": "float32"})  # not every CPU computes in bfloat16
        arguments = own | {"tensor_parallel_size": pool.tensor_parallel} | pool.engine_args
        return {
            "engine": pool.engine,
            "actors": self.actors,
            "namespace": NAMESPACE,
            "actor_class": engine_actor_class() if self.actors else None,
            "resources": {"num_cpus": pool.cpus * pool.tensor_parallel, "num_gpus": pool.gpus},
            "model": self.model,
            "source": self.source,
            "server": self.server,
            "bundles": [pool.bundle] * pool.tensor_parallel,
            "replicas": {"num_replicas": least}
            if least == most
            else {"autoscaling_config": {"min_replicas": least, "max_replicas": most}},
            "engine_args": {name: value for name, value in arguments.items() if value is not None},
            "env": pool.env,
        }


@dataclass(frozen=True)
class PoolState:
    """What Ray Serve says of an application."""

    status: str  # DEPLOYING, RUNNING, UNHEALTHY, DEPLOY_FAILED …
    message: str
    replicas: Mapping[str, int]  # by state, of the deployment that holds the model

    @property
    def is_up(self) -> bool:
        return self.status == "RUNNING"


def pool_address(application: str, spread: SpreadSettings, port: int) -> str:
    """The address at which workers of every node ask a pool: Serve's proxy on the head of the cluster."""
    host = split_address(_plain(spread.address))[0] if spread.address else "127.0.0.1"
    return f"http://{host}:{port}/{application}/v1"


def _plain(address: str) -> str:
    return address.replace("https://", "ray://").replace("http://", "ray://")


def check_python(plans: Iterable[PoolPlan], spread: SpreadSettings) -> None:
    """GeofixError if the engine's Python is missing on this machine, where a private Ray would look for it."""
    for plan in plans:
        if spread.address is None and plan.python is not None and shutil.which(plan.python) is None:
            raise GeofixError(
                f"models.pools.{plan.name}: there is no Python with vLLM at {plan.python}: `make vllm` installs it in "
                f".venv-vllm; elsewhere name it in models.pools.{plan.name}.python or {VLLM_PYTHON}"
            )


def check_gpus(plans: Iterable[PoolPlan], nodes: Sequence[Mapping[str, float]]) -> None:
    """GeofixError if the cluster cannot hold the first replicas of these pools at once."""
    free = [node.get("GPU", 0.0) for node in nodes]
    for plan in plans:
        pool = plan.settings
        for each in [pool.bundle.get("GPU", 0.0)] * (pool.tensor_parallel * pool.replicas[0]):
            place = next((number for number, left in enumerate(free) if left >= each - 1e-9), None)
            if place is None:
                have = " + ".join(f"{node.get('GPU', 0):g}" for node in nodes if node.get("GPU")) or "none"
                raise GeofixError(
                    f"models.pools.{plan.name} needs {pool.replicas[0]} x {pool.gpus:g} GPUs, and the cluster has "
                    f"{have} in {len(nodes)} nodes, which pools queried at the same time share: lower replicas or "
                    "gpus, or add nodes"
                )
            free[place] -= each


class Keepers:
    """The keepers of a cluster, one for each Python, as this command uses them."""

    def __init__(self, spread: SpreadSettings, port: int, owner: str, lease_s: float = LEASE_S) -> None:
        self._spread, self._port, self._owner, self._lease_s = spread, port, owner, lease_s
        self._keepers: dict[str | None, Any] = {}

    def bring_up(self, plan: PoolPlan) -> None:
        """Have Serve deploy a pool, unless it is there; does not wait for it."""
        head = next((node for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]), None)
        host = head["NodeManagerAddress"] if head else "127.0.0.1"
        http = {"host": host, "port": self._port}
        asked_as = urlsplit(pool_address(plan.application, self._spread, self._port)).hostname
        options = plan.options() | {"host": asked_as}
        self._call(plan, "bring_up", self._owner, self._lease_s, plan.application, http, options)

    def wait(self, plan: PoolPlan, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Until a pool answers; `say` gets each new message of Serve. GeofixError where it does not come up."""
        begin_s, message = clock(), ""
        while True:
            state = self.states([plan]).get(plan.application)
            if state is not None and state.is_up:
                say(f"pool {plan.name}: ready after {clock() - begin_s:.0f} s")
                return
            if state is not None and state.status == "DEPLOY_FAILED":
                raise GeofixError(f"models.pools.{plan.name} did not start: {_one_line(state.message)}")
            newest = "" if state is None else " ".join(state.message.split())[:160]
            newest = newest or "waiting for a replica"
            if newest != message:
                say(f"pool {plan.name}: {newest}")
                message = newest
            if clock() - begin_s > plan.settings.start_s:
                raise GeofixError(
                    f"models.pools.{plan.name} did not come up within start_s={plan.settings.start_s:g} s: {message}"
                )
            time.sleep(LOOK_EVERY_S)

    def renew(self, plans: Iterable[PoolPlan]) -> None:
        """Say that the pools are still used."""
        for plan in plans:
            self._call(plan, "renew", self._owner, self._lease_s, plan.application)

    def release(self, plan: PoolPlan) -> None:
        """This command uses the pool no more; it is put away unless another one does."""
        self._call(plan, "release", self._owner, plan.application)

    def stop(self, plan: PoolPlan) -> None:
        """Put a pool away, even while a command uses it."""
        self._call(plan, "stop", plan.application)

    def states(self, plans: Iterable[PoolPlan]) -> dict[str, PoolState]:
        """What Serve says of these pools, by application; one that is not there is left out."""
        by_name: dict[str, PoolState] = {}
        for plan in plans:
            told = self._call(plan, "states").get(plan.application)
            if told is not None:
                by_name[plan.application] = PoolState(**told)
        return by_name

    def _keeper(self, python: str | None) -> Any:
        if python not in self._keepers:
            environment = {"env_vars": PATIENCE} | ({} if python is None else {"py_executable": python})
            self._keepers[python] = (
                ray.remote(_keeper_class())
                .options(
                    name=f"pools-{digest(python or '')[:8]}",
                    namespace=NAMESPACE,
                    lifetime="detached",
                    get_if_exists=True,
                    num_cpus=0,
                    max_concurrency=8,
                    runtime_env=environment,
                )
                .remote(SWEEP_S)
            )
        return self._keepers[python]

    def _call(self, plan: PoolPlan, method: str, *arguments: Any) -> Any:
        """A method of the keeper, queried once more of a new one where its node was lost."""
        if not ray.is_initialized():  # a call would start another Ray
            raise GeofixError(f"models.pools.{plan.name}: the Ray it is on is gone")
        until, died = time.monotonic() + NOTICE_S, 0
        while True:
            keeper = self._keeper(plan.python)
            try:
                return ray.get(getattr(keeper, method).remote(*arguments), timeout=CALL_S)
            except RayTaskError as error:
                raise GeofixError(f"models.pools.{plan.name}: {_one_line(error.cause)}") from error
            except RayActorError as error:
                del self._keepers[plan.python]
                if isinstance(error, ActorUnavailableError) and time.monotonic() < until:
                    time.sleep(1.0)  # its node is lost, which Ray has yet to notice
                    continue
                died += 1
                if died == 2:
                    raise GeofixError(
                        f"models.pools.{plan.name}: Ray could not run {plan.python or sys.executable} on its nodes, or "
                        f"Ray's and Python's versions differ there: {_one_line(error)}"
                    ) from error
            except (RayError, ConnectionError) as error:
                raise GeofixError(f"models.pools.{plan.name}: Ray does not answer: {_one_line(error)}") from error


def open_keepers(spread: SpreadSettings, port: int, owner: str, lease_s: float = LEASE_S) -> Keepers:
    """Ray joined or started, and its keepers. Pools that are not renewed within `lease_s` are put away."""
    start_ray(spread)
    return Keepers(spread, port, owner, lease_s)


def _one_line(error: object, most: int = 300) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= most else f"… {words[-most:]}"


def _keeper_class() -> type:
    """The keeper's class. Nested, so that Ray sends it by value: it uses nothing of geofix but what it is given."""

    class PoolKeeper:
        def __init__(self, sweep_s: float) -> None:
            import threading

            self._sweep_s = sweep_s
            self._leases: dict[str, dict[str, float]] = {}  # application -> owner -> until when, by the clock
            self._actors: dict[str, list[tuple[Any, Any]]] = {}  # application -> its actors, and their being ready
            self._lock = threading.Lock()
            threading.Thread(target=self._sweep, name="leases", daemon=True).start()

        def bring_up(
            self, owner: str, lease_s: float, application: str, http: dict[str, Any], options: dict[str, Any]
        ) -> None:
            from ray import serve

            with self._lock:
                self._renew(owner, lease_s, application)
                if options["actors"]:
                    if application not in self._actors:
                        self._actors[application] = [self._actor(name, options) for name in options["actors"]]
                    return
                known = serve.status().applications.get(application)
                if known is not None and known.status not in ("DEPLOY_FAILED", "UNHEALTHY", "DELETING"):
                    return
                self._start(http)
                build = self._vllm if options["engine"] == "vllm" else self._embedded
                target = serve.RunTarget(build(options), name=application, route_prefix=f"/{application}")
                serve.run_many([target], wait_for_applications_running=False)

        def _actor(self, name: str, options: dict[str, Any]) -> tuple[Any, Any]:
            import ray

            # Ray starts a lost one again, and asks it again what it had not answered.
            lasting = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 1000}
            where = {"name": name, "namespace": options["namespace"], "runtime_env": {"env_vars": options["env"]}}
            actor_class = ray.remote(options["actor_class"]).options(**lasting, **where, **options["resources"])
            actor = actor_class.remote(options["source"], options["engine_args"])
            return actor, actor.ready.remote()

        def _start(self, http: dict[str, Any], times: int = 3) -> None:
            from ray import serve
            from ray.exceptions import RayActorError

            for left in reversed(range(times)):
                try:
                    serve.start(proxy_location="HeadOnly", http_options=http)
                    return
                except (RayActorError, TimeoutError):  # a proxy that was too slow; the controller starts another
                    if not left:
                        raise

        def renew(self, owner: str, lease_s: float, application: str) -> None:
            with self._lock:
                self._renew(owner, lease_s, application)

        def release(self, owner: str, application: str) -> None:
            with self._lock:
                owners = self._leases.get(application, {})
                owners.pop(owner, None)
                if not owners:
                    self._delete(application)

        def stop(self, application: str) -> None:
            with self._lock:
                self._delete(application)

        def states(self) -> dict[str, dict[str, Any]]:
            from ray import serve

            by_pool = {name: self._actor_state(actors) for name, actors in self._actors.items()}
            for name, application in serve.status().applications.items():
                model = next(
                    (
                        each
                        for key, each in application.deployments.items()
                        if key.startswith(("LLMServer", "Checkpoint"))
                    ),
                    None,
                )
                messages = [each.message for each in application.deployments.values() if each.message]
                by_pool[name] = {
                    "status": str(getattr(application.status, "value", application.status)),
                    "message": " ".join([*messages, application.message] if application.message else messages),
                    "replicas": {str(getattr(key, "value", key)): count for key, count in model.replica_states.items()}
                    if model
                    else {},
                }
            return by_pool

        def _actor_state(self, actors: list[tuple[Any, Any]]) -> dict[str, Any]:
            import ray

            done, waiting = ray.wait([ready for _, ready in actors], num_returns=len(actors), timeout=0)
            try:
                ray.get(done)
            except Exception as error:  # noqa: BLE001 - whatever a model's start raises
                return {"status": "DEPLOY_FAILED", "message": str(error), "replicas": {}}
            status = "DEPLOYING" if waiting else "RUNNING"
            return {"status": status, "message": "", "replicas": {"RUNNING": len(done)}}

        def _renew(self, owner: str, lease_s: float, application: str) -> None:
            import time

            self._leases.setdefault(application, {})[owner] = time.monotonic() + lease_s

        def _delete(self, application: str) -> None:
            import ray
            from ray import serve

            self._leases.pop(application, None)
            for actor, _ in self._actors.pop(application, ()):
                ray.kill(actor)
            if application in serve.status().applications:
                serve.delete(application)

        def _sweep(self) -> None:
            import time

            while True:
                time.sleep(self._sweep_s)
                now_s = time.monotonic()
                with self._lock:
                    for application, owners in list(self._leases.items()):
                        left = {owner: until for owner, until in owners.items() if until > now_s}
                        self._leases[application] = left
                        if not left:
                            self._delete(application)

        def _vllm(self, options: dict[str, Any]) -> Any:
            from ray.serve.llm import LLMConfig, build_openai_app

            config = LLMConfig(
                model_loading_config={"model_id": options["model"], "model_source": options["source"]},
                engine_kwargs=options["engine_args"],
                placement_group_config={"bundles": options["bundles"]},
                deployment_config=options["replicas"] | {"ray_actor_options": {"num_cpus": 0}},  # beside the bundles
                runtime_env={"env_vars": options["env"]} if options["env"] else None,
            )
            few = {"num_replicas": 1, "autoscaling_config": None, "ray_actor_options": {"num_cpus": 0}}
            return build_openai_app({"llm_configs": [config], "ingress_deployment_config": few})

        def _embedded(self, options: dict[str, Any]) -> Any:
            import sys

            from ray import serve

            def application() -> Any:
                import importlib
                from pathlib import Path

                module, _, name = options["server"].partition(":")
                make_app = getattr(importlib.import_module(module), name)
                return make_app(Path(options["source"]), options["model"], host=options["host"])

            [bundle] = options["bundles"]

            @serve.ingress(application)
            class Checkpoint:
                pass

            # Serve's controller may run in another engine's environment, which its replicas would inherit.
            environment = {"py_executable": sys.executable, "env_vars": options["env"]}
            resources = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "runtime_env": environment}
            replicas = serve.deployment(ray_actor_options=resources, max_ongoing_requests=256, **options["replicas"])
            return replicas(Checkpoint).bind()

    return PoolKeeper
