"""How work is spread over Ray."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from schemas.settings.base import Settings


class SpreadSettings(Settings):
    """Where Ray runs and how many workers a stage gets."""

    address: str | None = Field(None, description="an existing Ray cluster (ray://host:port or host:port); none: here")
    workers: int | None = Field(None, ge=1, description="workers a stage; none: what the machine or cluster has")
    wait_s: float = Field(600, gt=0, description="how long a stage waits for Ray to give it a first worker")
    object_store_mb: int = Field(256, ge=80, description="memory for Ray's objects when it runs here")

    @field_validator("address")
    @classmethod
    def _names_one_cluster(cls, value: str | None) -> str | None:
        # Ray's own `auto` takes whichever Ray it finds, such as the private one of another command.
        parts = urlsplit(value if value is None or "://" in value else f"ray://{value}")
        try:
            complete = value is None or (parts.scheme == "ray" and bool(parts.hostname) and parts.port is not None)
        except ValueError:
            complete = False
        if not complete:
            raise ValueError("must be host:port or ray://host:port of a running Ray cluster, or null for this machine")
        return value
