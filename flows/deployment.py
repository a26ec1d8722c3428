"""What deployments are made with: options from GEOFIX_* variables, and keys from Prefect's secret blocks.

Keys are not job variables of a deployment: `prefect deploy` would read the blocks and store the keys themselves.
"""

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

from flows.options import RunOptions
from schemas.config import Config
from schemas.errors import GeofixError
from schemas.load import ConfigError
from tasks.lake.location import VARIABLES, Location
from tasks.runtime.items.identity import code_version

logger = logging.getLogger("geofix.flows")


def deployment_values(
    lake: str | None = None,
    profile: str | None = None,
    config: str | None = None,
    recipe: str | None = None,
    schedules: str | None = None,
) -> dict[str, Any]:
    """The build step of prefect.yaml: `options`, `tags`, `schedules` and `version` of every deployment.

    What is wrong ends `prefect deploy` with one line: of any other exception it prints the whole traceback.
    """
    try:
        return _values(lake, profile, config, recipe, schedules or "off")
    except (ConfigError, GeofixError) as error:
        raise SystemExit(f"geofix: {error}") from error


def _values(
    lake: str | None, profile: str | None, config: str | None, recipe: str | None, schedules: str
) -> dict[str, Any]:
    required = {"lake": lake, "profile": profile}
    missing = [f"GEOFIX_{name.upper()}" for name, value in required.items() if not value]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} must be set: GEOFIX_LAKE=/data/lake (or s3://bucket/prefix) "
            "GEOFIX_PROFILE=production prefect deploy --all"
        )
    if schedules not in ("on", "off"):
        raise ConfigError(f"GEOFIX_SCHEDULES: given '{schedules}', allowed are on and off")
    if config and not Path(config).is_absolute():
        raise ConfigError(f"GEOFIX_CONFIG: given '{config}', but workers run in other folders: give its absolute path")
    options = RunOptions(profile=profile, recipe=recipe or None, config=config or None, lake=lake)
    require_absolute_lake(options)
    options.model_copy(update={"config": None}).resolve()  # names of profile and recipe; the file is on the workers
    return {
        "options": options.model_dump(exclude_none=True, exclude_defaults=True),
        "tags": deployment_tags(lake, profile),
        "schedules": schedules == "on",
        "version": code_version(),
    }


def deployment_tags(lake: str | None, profile: str | None) -> list[str]:
    """By which Prefect's pages are filtered; flow runs have those of their deployment."""
    return [f"lake:{lake}", f"profile:{profile}"]


def require_absolute_lake(options: RunOptions) -> None:
    """ConfigError unless the lake of a deployment is named, and the same from every folder."""
    if not options.lake:
        raise ConfigError("options.lake: this deployment names no lake: set GEOFIX_LAKE and deploy it again")
    location = Location.parse(options.lake)
    if location.is_local and not Path(options.lake.removeprefix("file://")).is_absolute():
        raise ConfigError(
            f"options.lake: given '{options.lake}', but workers run in other folders: give an absolute path "
            f"(here it would be {location.uri}) or a URI such as s3://bucket/prefix"
        )


def block_name(variable: str) -> str:
    """The name of the secret block that holds what an environment variable would: MAPILLARY_TOKEN, mapillary-token."""
    return variable.lower().replace("_", "-")


def keys_from_blocks(config: Config) -> list[str]:
    """Take keys that the environment lacks from Prefect's secret blocks of their names; returns the variables set.

    They become part of the environment of this process, as if the worker had had them, and go where keys go from there.
    """
    from prefect.blocks.system import Secret

    loaded = []
    for variable in key_variables(config):
        if not os.environ.get(variable):
            with contextlib.suppress(ValueError):  # there is no such block
                block = Secret.load(block_name(variable))
                assert isinstance(block, Secret)  # not a coroutine: there is no event loop here
                os.environ[variable] = str(block.get())
                loaded.append(variable)
    if loaded:
        logger.info("keys taken from Prefect's secret blocks: %s", ", ".join(loaded))
    return loaded


def key_variables(config: Config) -> list[str]:
    """The environment variables that these settings read secrets from."""
    endpoints = (*config.services.endpoints().values(), *config.models.endpoints.values())
    named = [endpoint.key_env for endpoint in endpoints if endpoint.key_env and endpoint.public_key is None]
    store = VARIABLES.get(config.lake.partition("://")[0], ())
    return list(dict.fromkeys([*named, config.notify.url_env, *store]))
