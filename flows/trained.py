"""The newest trained model, served on loopback while a part needs it."""

import contextlib
import sys
from collections.abc import Iterator

import polars as pl

from flows.servers import free_port, server
from flows.session import Session
from schemas.config import Config
from schemas.settings.services import TrainedEndpoint


@contextlib.contextmanager
def trained_model(session: Session, part: str) -> Iterator[Config]:
    """The configuration with `services.trained` reachable, if evaluation asks for a trained model and there is one."""
    config = session.config
    if part != "evaluate" or not config.evaluate.trained or config.services.trained is not None:
        yield config
        return
    models = session.lake.read("models").filter(pl.col("training_stage") == "grpo").sort("written_at")
    if models.is_empty():
        yield config
        return
    checkpoint = session.lake.root / models.row(-1, named=True)["checkpoint"]
    port = free_port()
    command = [sys.executable, "-m", "infra.serve", "--model", str(checkpoint), "--port", str(port), "--lifeline"]
    with server(command, f"http://127.0.0.1:{port}/health", session.state / "trained-model.log"):
        endpoint = TrainedEndpoint(base_url=f"http://127.0.0.1:{port}/v1")
        services = config.services.model_copy(update={"trained": endpoint})
        yield config.model_copy(update={"services": services})
