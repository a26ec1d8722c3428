"""The offline world that a command starts beside itself."""

from pydantic import Field

from schemas.settings.base import Settings


class OfflineSettings(Settings):
    """Whether and how the offline world is served while a command runs."""

    serve: bool = Field(False, description="start the offline world if none answers at its port")
    port: int = Field(8760, ge=1, le=65535, description="on loopback")
    seed: int = Field(7, ge=0, description="another seed, another Earth")
    processes: int = Field(1, ge=1, description="that serve it, each painting and reading on its own")
    size: int = Field(40_000, ge=1, description="gazetteer places that have imagery")
