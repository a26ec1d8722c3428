"""The newest trained model, served on loopback while a part needs it."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from flows.servers import Server, listening
from flows.session import Session
from schemas.config import Config
from schemas.settings.services import TrainedEndpoint


@contextlib.contextmanager
def trained_model(session: Session, part: str) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The configuration with `services.trained`, if evaluation asks for a trained model and there is one.

    The second value is to be called before the services are first asked.
    """
    config = session.config
    if part != "evaluate" or not config.evaluate.trained or config.services.trained is not None:
        yield config, session.ready
        return
    models = session.lake.read("models").sort("written_at")
    if models.is_empty():
        yield config, session.ready
        return
    checkpoint = session.lake.blobs.pull(models.row(-1, named=True)["checkpoint"])
    door = listening(0)
    port = door.getsockname()[1]
    command = [sys.executable, "-m", "infra.serve", "--model", str(checkpoint), "--port", str(port)]
    server = Server(
        command, f"http://127.0.0.1:{port}/health", session.state / "trained-model.log", door, "the trained model"
    )
    services = config.services.model_copy(update={"trained": TrainedEndpoint(base_url=f"http://127.0.0.1:{port}/v1")})

    def ready() -> None:
        session.ready()
        server.ensure()

    try:
        yield config.model_copy(update={"services": services}), ready
    finally:
        server.stop()
