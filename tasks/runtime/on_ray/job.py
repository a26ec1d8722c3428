"""One stage on the head of a Ray cluster: `python -m tasks.runtime.on_ray.job MODULE STAGE`, as a job runs it.

The whole configuration is in an environment variable. Progress and the result are lines of the output.
"""

import dataclasses
import importlib
import json
import os
import sys

from schemas.config import Config, section_of
from schemas.errors import GeofixError
from tasks.lake import Lake
from tasks.runtime.items.outcome import Tick
from tasks.runtime.on_ray.jobs import CONFIG, FLOW_RUN, RESULT, SNAPSHOT, TICK, stages_in
from tasks.runtime.runner import Context, run
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import services_asked
from tasks.services import ServiceError, connect


def main(argv: list[str]) -> int:
    """Run the stage; returns the exit code."""
    module, name = argv
    stage = next(candidate for candidate in stages_in(importlib.import_module(module)) if candidate.name == name)
    config = Config.model_validate_json(os.environ[CONFIG])
    spread = config.spread.model_copy(update={"address": os.environ["RAY_ADDRESS"]})  # of this cluster, set by Ray

    def progress(tick: Tick) -> None:
        print(TICK, json.dumps(dataclasses.asdict(tick)), flush=True)

    try:
        settings = section_of(config, stage.section or stage.name.partition(".")[0])
        roles = stage.roles(settings) if stage.roles else ()
        connections = connect(config.services, os.environ, services_asked(stage, settings), config.models, roles)
        lake, wanted = Lake(config.lake), os.environ.get(SNAPSHOT)
        context = Context(
            lake=lake,
            connections=connections,
            spread=spread,
            run=config.run,
            progress=progress,
            flow_run_id=os.environ.get(FLOW_RUN, ""),
            config_json=os.environ[CONFIG],
            snapshot=approved_snapshot(lake, wanted) if wanted else None,
        )
        result = run(stage, settings, context)
    except (GeofixError, ServiceError) as error:
        print(f"geofix: {error}", flush=True)
        return 1
    print(RESULT, json.dumps(dataclasses.asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
