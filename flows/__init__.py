"""What runs, in which order, when. The only package that imports prefect."""

import os
import sys
from pathlib import Path

# `python -m flows.cli` looks into the working directory first, where a user's own tasks.py or schemas.py may lie.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).resolve().parent.parent:
    del sys.path[0]

# Nothing leaves the machine unless the user says otherwise; set before prefect, ray or GX are imported.
for _name, _value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}.items():
    os.environ.setdefault(_name, _value)
