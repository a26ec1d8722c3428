"""Pools: models that the flow has Ray Serve bring up on the cluster while stages ask them, and put away again."""

from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.settings.base import OPERATIONAL, Settings

NAMESPACE = "geofix"  # of our actors in Ray
VLLM_PYTHON = "GEOFIX_VLLM_PYTHON"  # the variable that names the Python of the engine's environment
TRAINED_MODELS = "trained"  # as `model`: whichever trained models a stage asks, each in a pool of its own


class Pool(Settings):
    """A model, what serves it, and what a replica gets of the cluster."""

    model: str = Field(
        TRAINED_MODELS,
        min_length=1,
        description="hub name, folder on every node, `trained:<model id>` of the lake, or `trained`: whichever trained "
        "models a stage asks",
    )
    engine: Literal["vllm", "embedded"] = Field(
        "vllm", description="vllm: `ray.serve.llm`; embedded: the server of `geofix serve`, for small checkpoints"
    )
    gpus: float = Field(1, ge=0, description="GPUs of a replica; a fraction shares one; 0: the model runs on CPUs")
    cpus: float = Field(1, gt=0, description="CPUs of each engine worker")
    tensor_parallel: int = Field(1, ge=1, description="engine workers that share the weights of a replica")
    replicas: tuple[int, int] = Field(
        (1, 1), description="from, to: how many there are at least, and at most while requests queue"
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the engine, such as max_model_len; null removes one of ours"
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment variables of the engine; no secrets")
    transport: Literal["http", "ray"] = Field(
        "http",
        description="how workers ask it: by HTTP through Ray Serve, or straight through Ray, for many requests that "
        "need no tools, such as a judge's; ray: as many replicas as `replicas` begins with",
        json_schema_extra=OPERATIONAL,
    )
    python: str | None = Field(
        None,
        description="Python of the engine's environment on every node; null: $GEOFIX_VLLM_PYTHON of the command, else "
        ".venv-vllm/bin/python here (embedded: the nodes' own)",
        json_schema_extra=OPERATIONAL,
    )
    start_s: float = Field(1800, gt=0, description="how long its start may take", json_schema_extra=OPERATIONAL)
    usd_per_gpu_second: float | None = Field(
        None,
        ge=0,
        description="US dollars for a second of one GPU, from start to end; null: unknown",
        json_schema_extra=OPERATIONAL,
    )

    @model_validator(mode="after")
    def _fits(self) -> "Pool":
        least, most = self.replicas
        if not 1 <= least <= most:
            raise ValueError(f"replicas: from and to must be 1 or more and in order, not {least} and {most}")
        if self.gpus > 1 and self.gpus % self.tensor_parallel:
            raise ValueError(
                f"gpus: {self.gpus:g} GPUs of a replica cannot be shared evenly by tensor_parallel="
                f"{self.tensor_parallel} workers"
            )
        if self.engine == "embedded" and (self.tensor_parallel > 1 or self.engine_args):
            raise ValueError("engine: embedded takes neither tensor_parallel nor engine_args")
        if self.engine == "embedded" and self.transport == "ray":
            raise ValueError("transport: ray is of engine vllm; embedded is queried by http")
        return self

    @property
    def bundle(self) -> dict[str, float]:
        """What each engine worker asks of a node."""
        return {"CPU": self.cpus, **({"GPU": self.gpus / self.tensor_parallel} if self.gpus else {})}
