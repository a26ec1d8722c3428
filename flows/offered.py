"""Refuses chat models that their service does not offer, before any work starts."""

import asyncio
import difflib
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flows.order import roles_of
from flows.servers import offline_world
from schemas.config import Config, section_of
from schemas.errors import InputError
from schemas.load import load_config
from schemas.settings.models import CHAT, TRAINED
from tasks.services import ServiceError, connect
from tasks.services.chat import Chat, no_price

TIMEOUT_S = 20.0
MOST = 12  # names in the message

logger = logging.getLogger("geofix.flows")


def check_models(config: Config, stages: Sequence[str]) -> None:
    """Ask the servers of models what they offer if these stages name a model that may be missing.

    The names that the shipped settings use are offered by the offline world, which therefore is not started for them.
    """
    wanted = _wanted(config, stages)
    if not config.offline.serve:  # which has three models
        refuse_equal_agents(config, stages)
    else:
        shipped = {
            (model.endpoint, model.model)
            for model in _wanted(load_config(recipe=config.recipe, profile=config.profile), stages)
        }
        wanted = [model for model in wanted if (model.endpoint, model.model) not in shipped]
    for endpoint in dict.fromkeys(model.endpoint for model in wanted):
        offered = _offered(config, endpoint)
        for model in wanted:
            if model.endpoint == endpoint and offered is not None and model.model not in offered:
                raise InputError(_refusal(config, model, offered))


def refuse_equal_agents(config: Config, stages: Sequence[str]) -> None:
    """InputError if two roles of a swarm are one model: its agents are to know different things (smileGeo 4.3).

    One role under several personas is a swarm too, and meant.
    """
    names: dict[tuple[str, str], str] = {}
    roles = dict.fromkeys(role for role, _ in config.evaluate.swarm.cast) if "evaluate" in stages else {}
    for name in roles:
        role = config.models.role(name)
        model = role.model or name
        if (other := names.setdefault((role.endpoint, model), name)) != name:
            raise InputError(
                f"evaluate.swarm.agents: {other} and {name} are one model, '{model}' of {role.endpoint}; give "
                f"models.roles.{name} another, or leave the agent out"
            )


def refuse_unpriced(config: Config, stages: Sequence[str]) -> None:
    """InputError if there is a money budget and the price of a model that these stages ask is not known."""
    if config.models.budget_usd is None:
        return
    models = connect(config.services, {}, (), config.models, ()).chat.models
    assert models is not None
    for _, role in roles_of(config, stages):
        if config.models.role(role).endpoint != TRAINED:
            target = models.target(role, CHAT)
            if target.price is None and target.endpoint in config.models.pools:
                raise InputError(
                    f"models.budget_usd is set, but what pool '{target.endpoint}' costs is not known: give "
                    f"models.pools.{target.endpoint}.usd_per_gpu_second, or leave the budget out"
                )
            if target.price is None:
                raise InputError(no_price(role, target.model))


@dataclass(frozen=True)
class _Wanted:
    """A model that a server has to offer, and the setting that names it."""

    setting: str
    endpoint: str
    model: str


def _refusal(config: Config, wanted: _Wanted, offered: Sequence[str]) -> str:
    endpoint = config.models.endpoints.get(wanted.endpoint) or config.services.chat
    close = difflib.get_close_matches(wanted.model, offered, 1)
    meant = f"did you mean '{close[0]}'? " if close else ""
    more = ", …" if len(offered) > MOST else ""
    return (
        f"{wanted.setting}: the {wanted.endpoint} service at {endpoint.base_url} offers no model '{wanted.model}'; "
        f"{meant}it offers {', '.join(offered[:MOST])}{more}"
    )


def _wanted(config: Config, stages: Sequence[str]) -> list[_Wanted]:
    """The models that servers have to offer; a trained one, or that of a pool, is served by ourselves, or its user."""
    wanted = []
    for section, name in roles_of(config, stages):
        role = config.models.role(name)
        if role.endpoint != TRAINED and role.endpoint not in config.models.pools:
            named = name in config.models.roles and role.model is not None
            setting = f"models.roles.{name}.model" if named else _setting(config, section, name)
            wanted.append(_Wanted(setting, role.endpoint, role.model or name))
    return wanted


def _setting(config: Config, section: str, role: str) -> str:
    """The field of a stage's settings that names a role."""
    for field, value in section_of(config, section).model_dump().items():
        if value == role or (isinstance(value, list | tuple) and role in value):
            return f"{section}.{field}"
    return section


@cache  # a command checks before it starts Prefect, and its flow checks again
def _asked(config_json: str, endpoint: str) -> tuple[str, ...] | None:
    config = Config.model_validate_json(config_json)
    with tempfile.TemporaryDirectory() as folder, offline_world(config, Path(folder) / "log") as (reachable, ready):
        ready()
        connection = connect(reachable.services, os.environ, [], reachable.models, _asking(reachable, endpoint)).chat

        async def models() -> list[str]:
            chat = Chat(connection)
            try:
                return await asyncio.wait_for(chat.models(endpoint), TIMEOUT_S)
            finally:
                await chat.close()

        try:
            return tuple(asyncio.run(models()))
        except (ServiceError, TimeoutError) as error:
            # Not every service lists its models; one that is out or refuses the key is reported by the stage.
            logger.warning(
                "the %s service does not list its models, so their names are not checked: %s", endpoint, error
            )
            return None


def _asking(config: Config, endpoint: str) -> list[str]:
    """Roles of this endpoint, whose key is needed; a role that is not named goes to `chat`."""
    return [name for name, role in config.models.roles.items() if role.endpoint == endpoint] or ["any"]


def _offered(config: Config, endpoint: str) -> tuple[str, ...] | None:
    return _asked(config.model_dump_json(include={"services", "models", "offline"}), endpoint)
