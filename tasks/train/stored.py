"""A job's checkpoints in the lake's object store: workers of several nodes share no disk, and a node may be lost.

Rank 0 uploads each checkpoint as it is written. Every process downloads what the store holds before it starts, and
leaves aside what only its own disk holds: all must go on from the same step. In a lake on a disk nothing is copied.
"""

import shutil
from pathlib import Path

from tasks.lake.blobs import Blobs
from tasks.train.result import BEST, KEPT, PREFIX, RESULT, WHOLE, partial_folder


class StoredJob:
    """The folder of one model below `models`, and that of its unfinished job."""

    def __init__(self, blobs: Blobs, models: str, model_id: str, parent_id: str | None) -> None:
        self._blobs, self._model = blobs, f"{models}/{model_id}"
        self._partial = f"{models}/{partial_folder(Path(model_id)).name}"
        self._parent = None if parent_id is None else f"{models}/{parent_id}"

    def publish(self) -> None:
        """Upload a model that was finished here by a run that was killed before it could."""
        is_here = not self._blobs.is_local and (self._blobs.local(self._model) / RESULT).is_file()
        if is_here and not self._blobs.exists(f"{self._model}/{RESULT}"):
            self.finished()

    def fetch(self) -> None:
        """This node's copies of the parent, of the finished model, or of the last checkpoints."""
        if self._blobs.is_local:
            return
        for key in (self._parent, self._model):
            if key is not None:
                self._blobs.pull(key)
        folder = self._blobs.pull(self._partial)
        known = {Path(blob.key).relative_to(self._partial).parts[0] for blob in self._blobs.list(self._partial)}
        for path in [*folder.glob(f"{PREFIX}*"), folder / BEST]:
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)

    def checkpoint_saved(self, path: Path) -> None:
        """Upload a checkpoint, the file that makes it whole last, and delete those that are too old."""
        if self._blobs.is_local:
            return
        self._blobs.push(f"{self._partial}/{path.name}", last=WHOLE)
        steps = {
            int(name.removeprefix(PREFIX))
            for blob in self._blobs.list(self._partial)
            if (name := Path(blob.key).relative_to(self._partial).parts[0]).startswith(PREFIX)
        }
        for step in sorted(steps)[:-KEPT]:
            self._delete(f"{self._partial}/{PREFIX}{step}", first=WHOLE)

    def best_saved(self) -> None:
        """Upload the weights with the best validation so far."""
        if not self._blobs.is_local:
            self._blobs.push(f"{self._partial}/{BEST}")

    def finished(self) -> None:
        """Upload the finished model, its result last, and delete the job's checkpoints."""
        if self._blobs.is_local:
            return
        self._blobs.push(self._model, last=RESULT)
        self._delete(self._partial, first=WHOLE)

    def _delete(self, prefix: str, first: str) -> None:
        """Without the file `first` a checkpoint is not whole: it goes before the others."""
        keys = sorted((blob.key for blob in self._blobs.list(prefix)), key=lambda key: not key.endswith(f"/{first}"))
        for key in keys:
            self._blobs.delete(key)
