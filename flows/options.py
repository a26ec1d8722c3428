"""What a flow is started with, from the command line or as a Prefect deployment's parameters."""

from pydantic import BaseModel, ConfigDict, Field

from schemas.config import Config
from schemas.load import load_config

# The demo is the offline profile; it approves its own snapshot when every check passes.
DEMO = {"review": {"auto_approve": True}}


class RunOptions(BaseModel):
    """Which configuration to use. Holds no secret, so it may be shown and stored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str | None = None
    profile: str | None = None
    config: str | None = Field(None, description="a YAML file")
    lake: str | None = None
    overrides: list[str] = Field(default_factory=list, description="section.field=value, as for --set")
    demo: bool = False
    snapshot: str | None = Field(
        None, description="the approved snapshot that the parts after review work on; none: the newest approved"
    )

    def resolve(self) -> Config:
        """The configuration these options amount to."""
        return load_config(
            recipe=self.recipe,
            profile=self.profile,
            file=self.config,
            lake=self.lake,
            overrides=self.overrides,
            extra=DEMO if self.demo else None,
        )
