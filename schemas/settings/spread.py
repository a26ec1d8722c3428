"""How work is spread over Ray."""

from pydantic import Field

from schemas.settings.base import Settings


class SpreadSettings(Settings):
    """Where Ray runs and how many workers a stage gets."""

    address: str | None = Field(None, description="an existing Ray cluster (ray://host:port or host:port); none: here")
    workers: int | None = Field(None, ge=1, description="workers a stage; none: what the machine or cluster has")
    object_store_mb: int = Field(256, ge=80, description="memory for Ray's objects when it runs here")
