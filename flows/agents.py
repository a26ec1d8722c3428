"""What an agent outside a stage works with: models, tools and their services, for one command."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.pools import pools_up
from flows.servers import offline_world
from flows.trained import OWN_PRICE, checkpoint_folder, model_server
from schemas.config import Config
from schemas.errors import InputError
from schemas.settings.models import TRAINED
from schemas.settings.services import TrainedEndpoint
from tasks.agent.service_tools import open_toolbox
from tasks.agent.toolbox import Toolbox
from tasks.lake import Lake
from tasks.services import Chat, Connections, connect
from tasks.train import packaged


@dataclass(frozen=True)
class AgentSession:
    """The services of one command."""

    config: Config
    connections: Connections
    tools: Toolbox

    def chat(self) -> Chat:
        """A client of every model role."""
        return Chat(self.connections.chat)


@contextlib.contextmanager
def agent_session(config: Config, role: str | None = None) -> Iterator[AgentSession]:
    """Services reachable, the offline world and the trained model served if the role or the tools need them."""
    lake = Lake(config.lake)
    with contextlib.ExitStack() as stack:
        config, ready = stack.enter_context(offline_world(config, lake.state / "offline-world.log"))
        if role is not None and config.models.role(role).endpoint == TRAINED and config.services.trained is None:
            config = stack.enter_context(_served(config, lake, role))
        config = stack.enter_context(pools_up(config, lake, [role] if role else []))
        ready()
        roles = [] if role is None else [role]
        needed = ["search", "geocoder", *(["chat"] if role else [])]
        connections = connect(config.services, os.environ, needed, config.models, roles)
        tools = open_toolbox(connections, lake.state, config.synthesize.result_chars)
        yield AgentSession(config, connections, tools)


def _checkpoint(lake: Lake, wanted: str) -> tuple[Path, str]:
    """The folder of a model and the name it is served by: the packaged agent, a model of the lake, or its newest."""
    if wanted == packaged.AGENT:
        return checkpoint_folder(lake, wanted, "")
    models = lake.read("models").sort("written_at")
    chosen = models if not wanted else models.filter(models["model_id"].str.starts_with(wanted))
    if chosen.is_empty():
        raise InputError(
            f"the lake {lake.uri} holds no trained model"
            + (f" '{wanted}'" if wanted else "")
            + f"; the packaged one is '{TRAINED}:{packaged.AGENT}'"
        )
    row = chosen.row(-1, named=True)
    return checkpoint_folder(lake, row["model_id"], row["checkpoint"])


@contextlib.contextmanager
def _served(config: Config, lake: Lake, role: str) -> Iterator[Config]:
    """The configuration with `services.trained`, serving the lake's newest model or the one the role names."""
    checkpoint, name = _checkpoint(lake, role.partition(":")[2])
    server = model_server(checkpoint, lake.state / "trained-model.log", name)
    endpoint = TrainedEndpoint(base_url=server.url, prices={name: OWN_PRICE})
    try:
        server.ensure()
        yield config.model_copy(update={"services": config.services.model_copy(update={"trained": endpoint})})
    finally:
        server.stop()
