"""Trained models of the lake, each served while a stage needs it: on loopback, or by a pool on the cluster."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from flows.servers import Server, listen_on
from flows.session import Session
from schemas.config import Config
from schemas.errors import InputError
from schemas.extras import require_extras
from schemas.settings.models import ModelEndpoint, Role, pool_endpoint
from schemas.settings.services import Price, TrainedEndpoint
from tasks.agent.attempt import PHASES, TRAINED, newest_model
from tasks.lake import Lake
from tasks.train import packaged

if TYPE_CHECKING:
    from flows.pools import RunPools

OWN_PRICE = Price(prompt=0, completion=0, source="served by geofix on this machine")


@contextlib.contextmanager
def trained_model(session: Session, stage: str) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The configuration with the trained models that the stage asks for, if there are any.

    The first is `services.trained`; each further one is an endpoint of its own, which its role `trained:<model id>`
    names. The second value is to be called before the services are first queried.
    """
    config = session.config
    wanted = checkpoints(config, session.lake.read("models"), stage) if config.services.trained is None else {}
    if not wanted:
        yield config, session.ready
        return
    if session.pools is not None and session.pools.serves_trained:
        yield _in_pools(session, session.pools, wanted)
        return
    servers: list[Server] = []
    trained: TrainedEndpoint | None = None
    endpoints, roles = dict(config.models.endpoints), dict(config.models.roles)
    for model_id, stored in wanted.items():
        checkpoint, served_name = checkpoint_folder(session.lake, model_id, stored)
        log = session.state / (f"trained-model-{len(servers)}.log" if servers else "trained-model.log")
        server, url = model_server(checkpoint, log, served_name)
        servers.append(server)
        prices = {served_name: OWN_PRICE}
        if trained is None:
            trained = TrainedEndpoint(base_url=url, prices=prices)
            continue
        name = f"trained-{model_id}"
        endpoints[name] = ModelEndpoint(base_url=url, prices=prices)
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


def model_server(checkpoint: Path, log: Path, name: str | None = None) -> tuple[Server, str]:
    """A server of this checkpoint, not yet started, and the URL of its API; `name` is the name of the model there."""
    require_extras("serving a trained model", "train")
    listen_socket = listen_on(0)
    address = f"http://127.0.0.1:{listen_socket.getsockname()[1]}"
    command = [sys.executable, "-m", "infra.serve", "--model", str(checkpoint), "--port", address.rpartition(":")[2]]
    command += ["--name", name] if name else []
    title = f"the trained model {checkpoint.name[:12]}"
    return Server(command, f"{address}/health", log, listen_socket, title), f"{address}/v1"


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
