"""How work is spread over Ray."""

from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from schemas.settings.base import OPERATIONAL, Settings


class StageResources(Settings):
    """What each worker of one stage gets, instead of what the stage declares. Changes no result."""

    cpus: float | None = Field(None, gt=0, description="CPUs of a worker")
    gpus: float | None = Field(None, ge=0, description="GPUs of a worker; a fraction shares one")
    memory_mb: int | None = Field(None, ge=1, description="memory Ray reserves for a worker")
    workers: int | None = Field(None, ge=1, description="workers; none: spread.workers")
    concurrency: int | None = Field(None, ge=1, le=1024, description="items at once in a worker, for async work")
    chunk: int | None = Field(None, ge=1, description="items sent to a worker at a time, to begin with")


class SpreadSettings(Settings):
    """Where Ray runs and how many workers a stage gets."""

    address: str | None = Field(
        None,
        description="an existing Ray cluster (host:port or ray://host:port), or its dashboard (http://host:port), to "
        "which stages are submitted as jobs; none: here",
    )
    workers: int | None = Field(None, ge=1, description="workers a stage; none: what the machine or cluster has")
    stages: dict[str, StageResources] = Field(
        default_factory=dict,
        json_schema_extra=OPERATIONAL,
        description="by stage, its workers' cpus, gpus, memory_mb, workers, concurrency, chunk, as in "
        "spread.stages.curate.judge.concurrency=32",
    )
    wait_s: float = Field(600, gt=0, description="how long a stage waits for Ray to give it a first worker")
    object_store_mb: int = Field(256, ge=80, description="memory for Ray's objects when it runs here")

    @field_validator("stages", mode="before")
    @classmethod
    def _names_with_dots(cls, value: Any) -> Any:
        # `--set` splits a stage's name at its dots: {curate: {judge: {…}}} is the same as {curate.judge: {…}}.
        return _flat(value, "") if isinstance(value, dict) else value

    @field_validator("address")
    @classmethod
    def _names_one_cluster(cls, value: str | None) -> str | None:
        # Ray's own `auto` takes any Ray it finds, such as the private one of another command.
        parts = urlsplit(value if value is None or "://" in value else f"ray://{value}")
        schemes = ("ray", "http", "https")
        try:
            complete = value is None or (parts.scheme in schemes and bool(parts.hostname) and parts.port is not None)
        except ValueError:
            complete = False
        if not complete:
            raise ValueError(
                "must be host:port or ray://host:port of a running Ray cluster, http://host:port of its dashboard, or "
                "null for this machine"
            )
        return value

    @property
    def submits_jobs(self) -> bool:
        """Whether stages are submitted to the dashboard of a cluster."""
        return self.address is not None and self.address.startswith(("http://", "https://"))


def _flat(settings: dict[Any, Any], stage: str) -> dict[str, Any]:
    """Fields by stage, from mappings nested at the dots of the stages' names."""
    flattened: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            for inner, fields in _flat(value, f"{stage}.{name}" if stage else str(name)).items():
                flattened[inner] = {**flattened.get(inner, {}), **fields} if isinstance(fields, dict) else fields
        elif stage:
            flattened.setdefault(stage, {})[name] = value
        else:
            flattened[str(name)] = value  # neither a stage nor a field: refused as what it is
    return flattened
