"""What a flow is started with, from the command line or as a Prefect deployment's parameters."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from flows.order import STAGES
from schemas.config import Config
from schemas.load import ConfigError, load_config, profile_names
from schemas.recipes import default_recipe, recipe_folders
from schemas.settings.models import TRAINED
from tasks.train.packaged import AGENT

# The demo is the offline profile; it approves its own snapshot when every check passes, and shows the packaged agent
# beside the one it trains for a minute.
DEMO = {
    "review": {"auto_approve": True},
    "evaluate": {"policies": ["answerer-base", "answerer-large", f"{TRAINED}:{AGENT}"]},
}


# Plain texts with a list of choices in the schema, which Prefect's UI shows as a selection. A wrong one is refused by
# `load_config`, which also says what is close to it.
RecipeName = Annotated[str, WithJsonSchema({"type": "string", "enum": list(recipe_folders())})]
ProfileName = Annotated[str, WithJsonSchema({"type": "string", "enum": profile_names()})]


def _known_stage(name: str) -> str:
    if name not in STAGES:
        raise ValueError(f"there is no stage '{name}'; the stages are {', '.join(STAGES)}")
    return name


StageName = Annotated[
    str, AfterValidator(_known_stage), WithJsonSchema({"type": "string", "enum": list(STAGES), "title": "Stage"})
]


class RunOptions(BaseModel):
    """Which configuration to use. Holds no secret, so it may be shown and stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Options")

    recipe: RecipeName | None = Field(
        None,
        title="Recipe",
        description=f"Which published system to follow; default: the file's, else {default_recipe()}.",
    )
    profile: ProfileName | None = Field(
        None, title="Profile", description="Where the services are: offline, miniature or production; default: offline."
    )
    config: str | None = Field(None, title="File", description="Path of a YAML file of settings, on the worker.")
    lake: str | None = Field(None, title="Lake", description="Folder of tables and images; default: 'lake'.")
    overrides: list[str] = Field(
        default_factory=list,
        title="Settings",
        description="Single settings as section.field=value, such as plan.places=200, as for --set.",
    )
    snapshot: str | None = Field(
        None,
        title="Snapshot",
        description="Approved snapshot that the stages after review work on; default: the newest approved.",
    )
    demo: bool = Field(
        False, title="Demo", description="Approve a snapshot by rule when every check passes, as `geofix demo` does."
    )

    def on_top_of(self, deployed: Mapping[str, Any]) -> "RunOptions":
        """These options over those of a deployment: a field that is given replaces, settings add up, the lake stays.

        Prefect itself would take the options of a flow run instead of the deployment's, the lake included.
        """
        base = RunOptions.model_validate(deployed)
        changes = self.model_dump(exclude_unset=True, exclude_none=True)
        if base.lake and changes.setdefault("lake", base.lake) != base.lake:
            raise ConfigError(
                f"options.lake: given '{self.lake}', but this deployment works on '{base.lake}' and on no other lake; "
                "leave the field out, or deploy the flow for that lake (`geofix up --lake`)"
            )
        own = self.overrides  # of a run that was suspended they hold the deployment's already
        overrides = own if own[: len(base.overrides)] == base.overrides else [*base.overrides, *own]
        return base.model_copy(update={**changes, "overrides": overrides})

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
