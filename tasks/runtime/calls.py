"""The table `calls`: calls to models that a stage's workers kept in the response store go there beside the work."""

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from schemas.settings.models import ModelsSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Commit, Lake
from tasks.runtime.on_ray.budget_actor import ActorResponseStore
from tasks.runtime.on_ray.start import start_ray
from tasks.services.call_store import COLUMNS, CallStore, End, process_owner
from tasks.services.calls import CallLog
from tasks.services.response_store import FILE, Responses

TABLE = "calls"
COMMIT_S = 60.0


def call_store(lake: Lake) -> CallStore:
    """Where the calls of a lake are kept as they are made."""
    return CallStore(lake.state / FILE)


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
        self._lake, self._clock, self._store = lake, clock, call_store(lake)
        load_calls(lake, self._store)
        self._store.close_abandoned()
        self._committed_s = clock()
        store: Responses = self._store
        if spread.address is not None:  # workers of other nodes do not reach the file
            start_ray(spread)
            store = ActorResponseStore.of(self._store.path)
        self.log = CallLog(store, stage, run_id, models.replay, models.budget_usd, process_owner())

    def commit_when_due(self) -> None:
        """Commit what has come, every minute, however often it is called."""
        if self._clock() - self._committed_s > COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Commit what has come."""
        self._committed_s = self._clock()
        commit_calls(self._lake, self._store)


def commit_calls(lake: Lake, store: CallStore | None = None) -> int:
    """Move calls from the store to their table; returns how many. Repeated after a kill, it adds none."""
    store = store or call_store(lake)
    moved = 0
    while Path(store.path).is_file() and (taken := store.take_batch()) is not None:
        file_id, batch, rows = taken
        now = datetime.now(UTC)
        for row in rows:
            row["made_from"], row["written_at"] = row["call_id"], now
            row["asked_at"] = datetime.fromtimestamp(row["asked_at"], UTC)
        version = lake.append(TABLE, rows, Commit(f"{TABLE}-{file_id}", batch))
        store.mark_stored(batch)
        if store.table_version() == version - 1:
            store.set_table_version(version)
        moved += len(rows)
    return moved


def load_calls(lake: Lake, store: CallStore) -> int:
    """Load rows that the table has and the store lacks: of another machine, or after the local state was deleted."""
    commit_calls(lake, store)
    version = lake.version(TABLE)
    if version <= store.table_version():
        return 0
    rows = lake.read(TABLE, version, list(COLUMNS)).with_columns(pl.col("asked_at").dt.epoch("us") / 1e6)
    return store.load(rows.to_dicts(), version)


def forget_calls(lake: Lake, is_meant: Callable[[str], bool], why: str, commit: Commit) -> int:
    """End the calls of these items and delete what was answered to them, on this machine too; returns how many."""
    commit_calls(lake)
    calls = lake.read(TABLE, columns=["call_id", "item_id"])
    meant = calls.filter(pl.Series([is_meant(item_id or "") for item_id in calls["item_id"]], dtype=pl.Boolean))
    rows = lake.scan(TABLE).filter(pl.col("tombstone").is_null(), pl.col("call_id").is_in(meant["call_id"].implode()))
    ended = lake.collect(TABLE, rows).with_columns(tombstone=pl.lit(why), reply_json=pl.lit(None, pl.String))
    if ended.height:
        lake.upsert(TABLE, ended.to_dicts(), commit)
    for path in lake.state.glob(f"{Path(FILE).stem}*.sqlite"):  # on a cluster every node has one
        CallStore(path).forget_items(is_meant)
    return ended.height


def book_gpu_seconds(lake: Lake, pool: str, model: str, gpu_seconds: float, usd: float | None) -> None:
    """Write down what a pool of served models took, as a row beside the calls that it answered: budgets count it."""
    call_id = f"pool-{pool}-{uuid.uuid4().hex}"
    row = dict.fromkeys(COLUMNS) | {
        "call_id": call_id,
        "asked_at": time.time(),
        "request_hash": call_id,
        "stage": "",
        "item_id": "",
        "run_id": "",
        "role": f"pool:{pool}",
        "endpoint": pool,
        "model": model,
        "sampling_json": "{}",
        "verdict": "gpu_seconds",
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "requests": 0,
        "seconds": gpu_seconds,
        "cost_usd": usd,
    }
    call_store(lake).apply([End(call_id, call_id, row)])


def spent_usd(lake: Lake) -> float:
    """What the calls on a lake have cost so far, those that may have been lost with a killed run included."""
    store = call_store(lake)
    return sum(store.totals()) if Path(store.path).is_file() else 0.0
