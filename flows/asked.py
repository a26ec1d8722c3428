"""What a run will ask, of whom and at which pace: said before the first request."""

from collections.abc import Sequence

from flows.order import roles_of, steps_run
from schemas.config import Config, section_of
from schemas.settings.endpoint import Endpoint
from tasks.runtime.stage import services_asked

_PACES = ("_per_minute", "_per_day")


def asked_lines(config: Config, stages: Sequence[str]) -> list[str]:
    """A line for each server that these stages ask; none where all is the run's own offline world."""
    if config.offline.serve:
        return []
    steps_of_service: dict[str, list[str]] = {}
    for stage, steps in steps_run(config, stages):
        for step in steps:
            for service in services_asked(step, section_of(config, step.section or stage)):
                steps_of_service.setdefault(str(service), []).append(step.name)
    endpoints = config.services.endpoints()
    roles = {role for _, role in roles_of(config, stages)}
    if roles:
        steps_of_service.pop("chat", None)  # named by their roles
    lines = [
        f"  {service}, for {', '.join(dict.fromkeys(steps))}: {_server(endpoints[service])}"
        for service, steps in sorted(steps_of_service.items())
        if service in endpoints
    ]
    models = {**config.models.endpoints, "chat": config.services.chat}
    for role in sorted(roles):
        name = config.models.role(role).endpoint
        lines.append(f"  model {role}: {_server(models[name])}" if name in models else f"  model {role}: {name}")
    if not lines:
        return []
    return [f"{_subject(config, stages)}will ask:", *lines, *([] if roles else ["  no model"])]


def _subject(config: Config, stages: Sequence[str]) -> str:
    if not {"plan", "collect"} <= set(stages):
        return "this run "
    plan, collect = config.plan, config.collect
    where = f" in {', '.join(plan.countries)}" if plan.countries else ""
    kinds = [f"{collect.panoramas} panorama", f"{collect.photos} photo", f"{int(collect.satellite.enabled)} satellite"]
    wanted = ", ".join(kind for kind in kinds if not kind.startswith("0"))
    return f"this run, for {plan.places:,} places{where} ({wanted} each), "


def _server(endpoint: Endpoint) -> str:
    if getattr(endpoint, "protocol", "") == "gazetteer":
        return "the packaged table of places, no request"
    values = {name: getattr(endpoint, name) for name in type(endpoint).model_fields if name.endswith(_PACES)}
    paces = [f"{name} {value:,.0f}" for name, value in values.items() if value is not None]
    if endpoint.key_env is None:
        key = "no key"
    else:
        key = "the offline world's key" if endpoint.public_key else f"the key in {endpoint.key_env}"
    return f"{endpoint.base_url}, {key}, {', '.join(paces) or 'no limit'}"
