"""The table `calls`: what a stage's workers wrote down of their calls to models goes there beside the work."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from schemas.settings.models import ModelsSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Commit, Lake
from tasks.runtime.budget_actor import ActorBroker, ActorCallStore
from tasks.runtime.ray_start import start_ray
from tasks.services.broker_client import Broker
from tasks.services.call_file import COLUMNS, CallFile
from tasks.services.calls import CallLog

TABLE = "calls"
COMMIT_S = 60.0


def call_file(lake: Lake) -> CallFile:
    """Where the calls of a lake are written down as they are made."""
    return CallFile(lake.state / "calls.sqlite")


class StageCalls:
    """The calls of one run of a stage."""

    def __init__(
        self,
        lake: Lake,
        models: ModelsSettings,
        spread: SpreadSettings,
        stage: str,
        run_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lake, self._clock, self._file = lake, clock, call_file(lake)
        take_in(lake, self._file)
        self._committed_s = clock()
        store: Any = self._file
        broker: Broker = self._file.path
        if spread.address is not None:  # workers of other nodes reach neither the file nor the broker's socket
            start_ray(spread)
            store, broker = ActorCallStore.of(self._file.path), ActorBroker.of(self._file.path)
        self.log = CallLog(store, stage, run_id, models.replay, models.budget_usd, broker)

    def look(self) -> None:
        """Commit what has come, every minute, however often it is called."""
        if self._clock() - self._committed_s > COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Commit what has come."""
        self._committed_s = self._clock()
        commit_calls(self._lake, self._file)


def commit_calls(lake: Lake, file: CallFile | None = None) -> int:
    """Move the calls that are written down to their table; returns how many. Repeated after a kill, it adds none."""
    file = file or call_file(lake)
    moved = 0
    while Path(file.path).is_file() and (taken := file.take_batch()) is not None:
        file_id, batch, rows = taken
        now = datetime.now(UTC)
        for row in rows:
            row["made_from"], row["written_at"] = row["call_id"], now
            row["asked_at"] = datetime.fromtimestamp(row["asked_at"], UTC)
        version = lake.append(TABLE, rows, Commit(f"{TABLE}-{file_id}", batch))
        file.stored(batch)
        if file.version() == version - 1:
            file.seen(version)
        moved += len(rows)
    return moved


def take_in(lake: Lake, file: CallFile) -> int:
    """Take in rows that the table has and the file lacks: of another machine, or after the local state was deleted."""
    commit_calls(lake, file)
    version = lake.version(TABLE)
    if version <= file.version():
        return 0
    rows = lake.read(TABLE, version, list(COLUMNS)).with_columns(pl.col("asked_at").dt.epoch("us") / 1e6)
    return file.load(rows.to_dicts(), version)


def spent_usd(lake: Lake) -> float:
    """What the calls on a lake have cost so far, those that may have been lost with a killed run included."""
    file = call_file(lake)
    return sum(file.spent()) if Path(file.path).is_file() else 0.0
