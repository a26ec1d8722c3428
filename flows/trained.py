"""Trained models of the lake, each served on loopback while a part needs it."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from flows.servers import Server, listening
from flows.session import Session
from schemas.config import Config
from schemas.extras import require_extras
from schemas.settings.models import ModelEndpoint, Role
from schemas.settings.services import Price, TrainedEndpoint
from tasks.agent.attempt import PHASES, TRAINED, newest_model

OWN_PRICE = Price(prompt=0, completion=0, source="served by geofix on this machine")


@contextlib.contextmanager
def trained_model(session: Session, part: str) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The configuration with the trained models that the part asks for, if there are any.

    The first is `services.trained`; each further one is an endpoint of its own, which its role `trained:<model id>`
    names. The second value is to be called before the services are first asked.
    """
    config = session.config
    wanted = checkpoints(config, session.lake.read("models"), part) if config.services.trained is None else {}
    if not wanted:
        yield config, session.ready
        return
    servers: list[Server] = []
    trained: TrainedEndpoint | None = None
    endpoints, roles = dict(config.models.endpoints), dict(config.models.roles)
    for model_id, stored in wanted.items():
        checkpoint = session.lake.blobs.pull(stored)
        server, url = _server(session.state, checkpoint, len(servers))
        servers.append(server)
        prices = {checkpoint.name: OWN_PRICE}
        if trained is None:
            trained = TrainedEndpoint(base_url=url, prices=prices)
            continue
        name = f"trained-{model_id}"
        endpoints[name] = ModelEndpoint(base_url=url, prices=prices)
        roles[f"{TRAINED}{model_id}"] = Role(endpoint=name, model=checkpoint.name)
    services = config.services.model_copy(update={"trained": trained})
    models = config.models.model_copy(update={"endpoints": endpoints, "roles": roles})

    def ready() -> None:
        session.ready()
        for server in servers:
            server.ensure()

    try:
        yield config.model_copy(update={"services": services, "models": models}), ready
    finally:
        for server in servers:
            server.stop()


def _server(state: Path, checkpoint: Path, number: int) -> tuple[Server, str]:
    require_extras("serving a trained model", "train")
    door = listening(0)
    port = door.getsockname()[1]
    command = [sys.executable, "-m", "infra.serve", "--model", str(checkpoint), "--port", str(port)]
    log = state / ("trained-model.log" if number == 0 else f"trained-model-{number}.log")
    server = Server(command, f"http://127.0.0.1:{port}/health", log, door, f"the trained model {checkpoint.name[:12]}")
    return server, f"http://127.0.0.1:{port}/v1"


def checkpoints(config: Config, models: pl.DataFrame, part: str) -> dict[str, str]:
    """model_id -> checkpoint of the models a part asks: policies named by phase or id, and the newest in evaluation."""
    if part == "evaluate":
        settings = config.evaluate
        names = [*settings.policies, *settings.scaling.policies, *settings.swarm.agents]
        newest = newest_model(models, "grpo") or newest_model(models) if settings.trained else None
        named = [newest] if newest else []
    elif part == "difficulty":
        settings_of = config.difficulty
        own = settings_of.endpoint == "trained"
        names = [TRAINED + settings_of.policy.removeprefix(TRAINED) if own else settings_of.policy]
        named = []
    else:
        return {}
    for name in names:
        if name in PHASES:
            found = newest_model(models, name)
            named += [found] if found else []
        elif name.startswith(TRAINED):
            named.append(name.removeprefix(TRAINED))
    known = dict(models.sort("written_at").select("model_id", "checkpoint").iter_rows())
    return {model_id: str(known[model_id]) for model_id in dict.fromkeys(named) if model_id in known}
