"""The local state of a lake: what must not lie on an object store.

    <stage>.lock, budgets.sqlite, responses.sqlite, starts.json, up.json, prefect-auth, prefect/, *.log, copies/

Locks and SQLite need a local file system; `copies/` holds local copies of reports and checkpoints of a remote lake.
Deleting the folder while no command runs costs repeated requests and downloads, never a row.

It is its owner's alone: Prefect keeps its blocks, and the key that decrypts them, in one database.
"""

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from tasks.lake.location import Location

FOLDER = ".state"
VARIABLE = "GEOFIX_STATE"


def state_folder(location: Location) -> Path:
    """Inside a local lake; for a remote one under $GEOFIX_STATE, by default ~/.local/state/geofix."""
    if location.folder is not None:
        return location.folder / FOLDER
    override = os.environ.get(VARIABLE)
    if override:
        base = Path(override).expanduser().absolute()
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "geofix"
    return base / hashlib.sha256(location.uri.encode()).hexdigest()[:16]


def keep_private(state: Path) -> None:
    """Close the folder and all in it to other users; earlier releases left both open."""
    paths = [Path(folder, name) for folder, folders, files in os.walk(state) for name in (*folders, *files)]
    for path in (state, *paths):
        with contextlib.suppress(OSError):  # gone meanwhile, another user's, or on a write-protected disk
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                path.chmod(mode & 0o700)
