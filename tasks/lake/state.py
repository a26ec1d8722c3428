"""The local state of a lake: what must not lie on an object store.

    <stage>.lock, budgets.sqlite, responses.sqlite, starts.json, up.json, prefect-auth, prefect/, *.log, copies/

Locks and SQLite need a local file system; `copies/` holds local copies of reports and checkpoints of a remote lake.
Deleting the folder while no command runs costs repeated requests and downloads, never a row.
"""

import hashlib
import os
from pathlib import Path

from tasks.lake.location import Location

FOLDER = ".state"
VARIABLE = "GEOFIX_STATE"


def state_folder(location: Location) -> Path:
    """Inside a local lake; for a remote one under $GEOFIX_STATE, by default ~/.local/state/geofix."""
    if location.folder is not None:
        return location.folder / FOLDER
    given = os.environ.get(VARIABLE)
    if given:
        base = Path(given).expanduser().absolute()
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "geofix"
    return base / hashlib.sha256(location.uri.encode()).hexdigest()[:16]
