"""Refuses chat models that their service does not offer, before any work starts."""

import asyncio
import difflib
import logging
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from flows.servers import offline_world
from schemas.config import Config
from schemas.errors import InputError
from schemas.load import load_config
from tasks.services import ServiceError, connect
from tasks.services.chat import Chat

TIMEOUT_S = 20.0
MOST = 12  # names in the message

logger = logging.getLogger("geofix.flows")


def check_models(config: Config, parts: Sequence[str]) -> None:
    """Ask the chat service for its models if these parts name one that may be missing.

    The names that the shipped settings use are offered by the offline world, which therefore is not started for them.
    """
    wanted = _wanted(config, parts)
    if config.offline.serve:
        shipped = _wanted(load_config(recipe=config.recipe, profile=config.profile), parts)
        known = {name for _, name in shipped}
        wanted = [(field, name) for field, name in wanted if name not in known]
    if not wanted:
        return
    offered = _offered(config)
    for field, name in wanted:
        if offered is not None and name not in offered:
            close = difflib.get_close_matches(name, offered, 1)
            meant = f"did you mean '{close[0]}'? " if close else ""
            more = ", …" if len(offered) > MOST else ""
            raise InputError(
                f"{field}: the chat service at {config.services.chat.base_url} offers no model '{name}'; {meant}"
                f"it offers {', '.join(offered[:MOST])}{more}"
            )


def _wanted(config: Config, parts: Sequence[str]) -> list[tuple[str, str]]:
    """(setting, model) of the models that the chat service has to offer."""
    policy = [config.difficulty.policy] if config.difficulty.endpoint == "chat" else []
    every = {
        "curate": [("curate.judge.model", config.curate.judge.model)],
        "synthesize": [
            ("synthesize.observer", config.synthesize.observer),
            ("synthesize.planner", config.synthesize.planner),
        ],
        "difficulty": [("difficulty.policy", name) for name in policy],
        "evaluate": [("evaluate.policies", name) for name in config.evaluate.policies],
    }
    return [one for part in parts for one in every.get(part, [])]


@cache  # a command checks before it starts Prefect, and its flow checks again
def _asked(config_json: str) -> tuple[str, ...] | None:
    config = Config.model_validate_json(config_json)
    with tempfile.TemporaryDirectory() as folder, offline_world(config, Path(folder) / "log") as (reachable, ready):
        ready()
        connection = connect(reachable.services, os.environ, ["chat"]).chat

        async def models() -> list[str]:
            chat = Chat(connection)
            try:
                return await asyncio.wait_for(chat.models(), TIMEOUT_S)
            finally:
                await chat.close()

        try:
            return tuple(asyncio.run(models()))
        except (ServiceError, TimeoutError) as error:
            # Not every service lists its models; one that is out or refuses the key is reported by the stage.
            logger.warning("the chat service does not list its models, so their names are not checked: %s", error)
            return None


def _offered(config: Config) -> tuple[str, ...] | None:
    return _asked(config.model_dump_json(include={"services", "offline"}))
