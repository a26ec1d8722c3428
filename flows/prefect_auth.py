"""Who may use a Prefect server that geofix starts: the holder of a secret, and no page of another address.

Anyone who may start a flow run may run any command as this user. Prefect's processes get the secret by the environment.
"""

import os
import secrets
from pathlib import Path

from tasks.lake import Lake

CLIENT, SERVER = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
ORIGINS = "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"


def secret_file(lake: Lake) -> Path:
    """Where the secret of `geofix up` is kept, as `user:password`."""
    return lake.state / "prefect-auth"


def read_secret(lake: Lake) -> str | None:
    """The secret of the server that `geofix up` started for this lake, if there is one."""
    try:
        return secret_file(lake).read_text().strip() or None
    except FileNotFoundError:
        return None


def lake_secret(lake: Lake) -> str:
    """The same secret; made when it is first requested, readable by its owner alone."""
    file = secret_file(lake)
    secret = read_secret(lake)
    if secret is None:
        secret = new_secret()
        fresh = file.with_suffix(".tmp")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(f"{secret}\n")
        fresh.replace(file)
    file.chmod(0o600)
    return secret


def new_secret() -> str:
    """A random `user:password`."""
    return f"geofix:{secrets.token_urlsafe(32)}"


def server_environment(secret: str, port: int) -> dict[str, str]:
    """Environment variables of a server on this loopback port and of its clients."""
    origins = ",".join(f"http://{host}:{port}" for host in ("127.0.0.1", "localhost"))
    return {CLIENT: secret, SERVER: secret, ORIGINS: origins}
