"""Trained models of the lake, each served while a stage needs it: on loopback, or by a pool on the cluster."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from flows.display import display
from flows.servers import Server, listen_on
from flows.session import Session
from schemas.config import Config
from schemas.errors import InputError
from schemas.extras import missing_modules, require_extras
from schemas.settings.models import ModelEndpoint, Role, pool_endpoint
from schemas.settings.services import Price, TrainedEndpoint
from tasks.agent.attempt import PHASES, TRAINED, newest_model
from tasks.lake import Lake
from tasks.train import packaged

if TYPE_CHECKING:
    from flows.pools import RunPools

OWN_PRICE = Price(prompt=0, completion=0, source="served by geofix on this machine")


class ModelServer(Server):
    """Serves a checkpoint, which it is told when it is needed; its process may start before, and import meanwhile."""

    def __init__(self, log: Path) -> None:
        require_extras("serving a trained model", "train")
        listen_socket = listen_on(0)
        port = listen_socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [sys.executable, "-m", "infra.serve", "--port", str(port)]
        super().__init__(command, f"http://127.0.0.1:{port}/health", log, listen_socket)
        self._order: bytes | None = None

    def load(self, checkpoint: Path, served_name: str | None = None) -> None:
        """Serve this checkpoint once it begins."""
        self._order = json.dumps({"model": str(checkpoint), "name": served_name}).encode() + b"\n"
        self._name = f"the trained model {checkpoint.name[:12]}"

    def import_ahead(self) -> None:
        """Start the process, which imports what serving needs and waits for its checkpoint."""
        if self._process is None:
            self._start()

    def begin(self) -> None:
        order, self._order = self._order, None
        if order is None:
            return
        display.get().phase(f"starting {self._name}")
        self.import_ahead()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended already: who waits for it says so
            self._process.stdin.write(order)
            self._process.stdin.flush()


class ModelServers:
    """Servers of trained models that import ahead, while the stage before theirs trains what they will serve."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[ModelServer] = []
        self._stage: str | None = None  # for which they import

    def import_for(self, stage: str) -> None:
        """Start as many as this stage will need once the phases of training are done."""
        session, config = self._session, self._session.config
        in_pools = session.pools is not None and session.pools.serves_trained
        if self._stage == stage or in_pools or config.services.trained is not None or missing_modules("train"):
            return
        self._stage = stage
        models = session.lake.read("models").select("model_id", "checkpoint", "training_stage", "recipe", "written_at")
        coming = [(phase, "", phase, config.train.recipe, datetime.now(UTC)) for phase in config.train.phases]
        models = models.vstack(pl.DataFrame(coming, schema=models.schema, orient="row"))
        for number in range(len(checkpoints(config, models, stage))):
            self._waiting.append(ModelServer(self._log(number)))
            self._waiting[-1].import_ahead()

    def take(self, number: int) -> ModelServer:
        """One that imported ahead, else a new one."""
        return self._waiting.pop(0) if self._waiting else ModelServer(self._log(number))

    def close(self) -> None:
        """End those that no stage took."""
        self._stage = None
        while self._waiting:
            self._waiting.pop().stop()

    def _log(self, number: int) -> Path:
        return self._session.state / (f"trained-model-{number}.log" if number else "trained-model.log")


@contextlib.contextmanager
def trained_model(
    session: Session, stage: str, ahead: ModelServers | None = None
) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The configuration with the trained models that the stage asks for, if there are any.

    The first is `services.trained`; each further one is an endpoint of its own, which its role `trained:<model id>`
    names. The second value is to be called before the services are first queried.
    """
    config, ahead = session.config, ahead or ModelServers(session)
    wanted = checkpoints(config, session.lake.read("models"), stage) if config.services.trained is None else {}
    if not wanted:
        yield config, session.ready
        return
    if session.pools is not None and session.pools.serves_trained:
        yield _in_pools(session, session.pools, wanted)
        return
    servers: list[ModelServer] = []
    trained: TrainedEndpoint | None = None
    endpoints, roles = dict(config.models.endpoints), dict(config.models.roles)
    for model_id, stored in wanted.items():
        checkpoint, served_name = checkpoint_folder(session.lake, model_id, stored)
        server = ahead.take(len(servers))
        server.load(checkpoint, served_name)
        servers.append(server)
        prices = {served_name: OWN_PRICE}
        if trained is None:
            trained = TrainedEndpoint(base_url=server.url, prices=prices)
            continue
        name = f"trained-{model_id}"
        endpoints[name] = ModelEndpoint(base_url=server.url, prices=prices)
        roles[f"{TRAINED}{model_id}"] = Role(endpoint=name, model=served_name)
    services = config.services.model_copy(update={"trained": trained})
    models = config.models.model_copy(update={"endpoints": endpoints, "roles": roles})

    def ready() -> None:
        for server in servers:
            server.begin()  # all at once
        session.ready()
        for server in servers:
            server.ensure()

    try:
        yield config.model_copy(update={"services": services, "models": models}), ready
    finally:
        for server in servers:
            server.stop()


def checkpoint_folder(lake: Lake, model_id: str, stored: str) -> tuple[Path, str]:
    """The folder of a model and the name it is served by; the packaged agent is in no lake."""
    if model_id == packaged.AGENT:
        return packaged.packaged_folder(model_id), model_id
    folder = lake.blobs.pull(stored)
    return folder, folder.name


def _in_pools(session: Session, pools: "RunPools", wanted: Mapping[str, str]) -> tuple[Config, Callable[[], None]]:
    """As `trained_model`, with the models on the cluster, where workers of every node reach them."""
    config = session.config
    if packaged.AGENT in wanted:
        raise InputError(f"policy {TRAINED}{packaged.AGENT}: the packaged agent is served on one machine, not in pools")
    plans = [pools.trained_plan(model_id, stored) for model_id, stored in wanted.items()]
    first, *others = (pool_endpoint(plan.settings, plan.model, pools.address(plan), plan.actors) for plan in plans)
    endpoints, roles = dict(config.models.endpoints), dict(config.models.roles)
    for model_id, plan, endpoint in zip(list(wanted)[1:], plans[1:], others, strict=True):
        endpoints[f"trained-{model_id}"] = endpoint
        roles[f"{TRAINED}{model_id}"] = Role(endpoint=f"trained-{model_id}", model=plan.model)
    services = config.services.model_copy(update={"trained": TrainedEndpoint(**first.model_dump())})
    models = config.models.model_copy(update={"endpoints": endpoints, "roles": roles})

    def ready() -> None:
        session.ready()
        pools.ensure(plans)

    return config.model_copy(update={"services": services, "models": models}), ready


def model_server(checkpoint: Path, log: Path, name: str | None = None) -> ModelServer:
    """A server of this checkpoint, not yet started; `name` is the name of the model there."""
    server = ModelServer(log)
    server.load(checkpoint, name)
    return server


def checkpoints(config: Config, models: pl.DataFrame, stage: str) -> dict[str, str]:
    """model_id -> checkpoint of the models a stage asks: policies by phase or id, and the newest in evaluation."""
    if stage == "evaluate":
        settings = config.evaluate
        names = [
            *(*settings.policies, *settings.scaling.policies, *settings.masking.policies),
            *(role for role, _ in settings.swarm.cast),
        ]
        recipe = settings.agent_recipe
        newest = newest_model(models, recipe, "grpo") or newest_model(models, recipe) if settings.trained else None
        named = [newest] if newest else []
    elif stage == "train":  # a swarm's agents, from whose answers it is learned whom to elect
        names, named = [role for role, _ in config.evaluate.swarm.cast], []
        recipe = config.evaluate.agent_recipe
    elif stage == "difficulty":
        settings_of = config.difficulty
        own = settings_of.endpoint == "trained"
        names = [TRAINED + settings_of.policy.removeprefix(TRAINED) if own else settings_of.policy]
        named, recipe = [], settings_of.recipe
    else:
        return {}
    for name in names:
        if name in PHASES:
            newest_id = newest_model(models, recipe, name)
            named += [newest_id] if newest_id else []
        elif name.startswith(TRAINED):
            named.append(name.removeprefix(TRAINED))
    known = {packaged.AGENT: "", **dict(models.sort("written_at").select("model_id", "checkpoint").iter_rows())}
    return {model_id: str(known[model_id]) for model_id in dict.fromkeys(named) if model_id in known}
