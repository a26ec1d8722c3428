"""What every stage is: what it reads, what it writes, which items there are and what is done to one."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from schemas.errors import GeofixError
from schemas.settings.run import RunSettings
from schemas.settings.spread import SpreadSettings, StageResources
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.runtime.items.identity import code_version
from tasks.runtime.items.outcome import Tick
from tasks.runtime.items.redo import Redo
from tasks.runtime.snapshots import Snapshot, approved_snapshot
from tasks.services import Connection, Connections
from tasks.services.response_store import FILE, Responses, ResponseStore

# How long a request is assumed to take at most, on average: that many seconds of a minute's budget can be under way.
REQUEST_S = 10.0


@dataclass(frozen=True)
class Resources:
    """What a stage needs of a worker; `spread.stages` in the settings overrides each field."""

    cpus: float = 1.0
    gpus: float = 0.0
    gpu_where_any: bool = False  # a whole one where a node of the cluster has one, which only Ray knows
    memory_mb: int | None = None  # none: Ray does not count it
    workers: int | None = None  # none: as many as fit; 0: none, work that is not async is done in this process
    concurrency: int = 1  # items in flight in a worker, for async work
    chunk: int = 16  # items a call, to begin with
    may_grow: bool = True  # while calls are quick, if the work is not async
    # (settings) -> whether its process waits for workers of its own, whose the CPUs and GPUs are
    only_waits: Callable[[Any], bool] = lambda settings: False

    def under(self, settings: Any) -> "Resources":
        """What a worker needs with these settings."""
        return replace(self, cpus=0.0, gpus=0.0, gpu_where_any=False) if self.only_waits(settings) else self


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker may open its context with."""

    lake: Lake
    connections: Connections
    shared: Any = None  # what `Stage.share` returned
    is_cluster: bool = False  # whether other nodes have workers, too

    def responses(self) -> Responses:
        """Answers that are kept for all workers of the run, where it asks models; else those of this node."""
        models = self.connections.chat.models
        return models.calls.store if models and models.calls else self.node_responses()

    def node_responses(self) -> ResponseStore:
        """Answers that are kept for workers of this node alone.

        On a cluster every node has a file of its own: over a network file system SQLite's locks cannot be trusted.
        """
        name = Path(FILE)
        node = name.with_stem(f"{name.stem}-{os.uname().nodename}") if self.is_cluster else name
        return ResponseStore(self.lake.state / node)


@dataclass(frozen=True)
class Inputs:
    """The tables a stage reads, each at one version for the whole run."""

    lake: Lake
    versions: Mapping[str, int]
    snapshot: Snapshot | None = None  # what a stage after the review works on; the versions are its own
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)

    def frame(self, table: str, *columns: str) -> pl.DataFrame:
        """The table's live rows at the run's version: all columns, or those named, which takes far less memory."""
        if table not in self.versions:
            raise GeofixError(f"this step does not declare that it reads '{table}'")
        if columns:
            return self._read(table, columns)
        if table not in self._frames:
            self._frames[table] = self._read(table, TABLES[table].schema.names)
        return self._frames[table]

    def release(self) -> None:
        """Let go of what was read: a large table need not stay in memory while the items are worked on."""
        self._frames.clear()

    def _read(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        version = self.versions[table]
        if self.snapshot is None or "image_id" not in TABLES[table].schema.names:
            return self.lake.read(table, version, columns)
        # A snapshot names old versions, which still hold what was withdrawn since.
        rows = self.lake.read(table, version, list(dict.fromkeys([*columns, "image_id"])))
        return rows.filter(~pl.col("image_id").is_in(self._withdrawn).fill_null(False)).select(columns)

    @cached_property
    def _withdrawn(self) -> pl.Series:
        return self.lake.read("withdrawals", columns=["image_id"])["image_id"].drop_nulls().implode()

    @property
    def snapshot_id(self) -> str:
        """The id of the snapshot the stage works on."""
        if self.snapshot is None:
            raise GeofixError("this step does not declare that it works on a snapshot")
        return self.snapshot.snapshot_id


@dataclass(frozen=True)
class Stage:
    """Work item by item, spread over Ray."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]  # the last one marks an item as finished
    items: Callable[[Inputs, Any], pl.DataFrame]  # a unique text column `id`, and what `work` needs
    work: Callable[[Any, Any], Any]  # (item, context) -> Kept | Rejected, sync or async; raises = failed, retried
    open: Callable[[Any, WorkerSetup], Any]  # (settings, setup) -> context, once in each worker
    version: int = 1  # raise it when the output changes its meaning
    resources: Resources = Resources()
    # whose keys must be there before anything starts, or (settings) -> those: they are started, counted and checked
    services: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ()
    # Rows stay live when their item leaves the input, as models and snapshots do; or (settings, item ids) -> which do.
    keeps_history: bool | Callable[[Any, pl.Expr], pl.Expr] = False
    identity: Callable[[Any], Any] | None = None  # the settings that matter; none: all that are not operational
    unhashed: tuple[str, ...] = ()  # item columns that `work` may use but that make no item another one
    section: str = ""  # dotted path of the settings that `run` is given, its identity; empty: the whole stage's section
    snapshot: bool = False  # reads the tables that the approved snapshot names at its versions
    # (inputs, settings) -> what all workers need, such as what a scan finds: computed once, then `WorkerSetup.shared`
    share: Callable[[Inputs, Any], Any] | None = None
    # settings -> the model roles it asks: their keys must be there, and another model behind one redoes its items
    roles: Callable[[Any], Sequence[str]] | None = None
    # settings -> every prompt, form and tool schema that it shows a model: other words redo its items
    words: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class ColumnStage:
    """Work on whole tables, in Polars, in this process."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str]
    compute: Callable[[Inputs, Any], tuple[pl.DataFrame, pl.DataFrame]]  # kept (id + columns), rejects (id, reason, …)
    version: int = 1
    keeps_history: bool = False
    identity: Callable[[Any], Any] | None = None
    section: str = ""
    snapshot: bool = False
    unhashed: tuple[str, ...] = ()
    services: ClassVar[tuple[str, ...]] = ()


def services_asked(stage: Stage | ColumnStage, settings: Any) -> tuple[str, ...]:
    """The services that a step asks under these settings."""
    return stage.services(settings) if callable(stage.services) else stage.services


@dataclass(frozen=True)
class Context:
    """What a run takes place in."""

    lake: Lake
    connections: Connections
    spread: SpreadSettings = SpreadSettings()
    progress: Callable[[Tick], None] = lambda tick: None
    ready: Callable[[], None] = lambda: None  # called before a stage with work to do asks its services
    run: RunSettings = field(default_factory=RunSettings)
    confirm: Callable[[Redo], bool] = lambda redo: False  # called before many finished items are paid for again
    flow_run_id: str = ""
    config_json: str = "{}"
    snapshot: Snapshot | None = None  # for the stages after the review; none: the newest approved
    is_part: bool = False  # the items are a part of the input only: nothing, failures included, ends by being absent

    @cached_property
    def code_version(self) -> str:
        return code_version()


def open_inputs(stage: Stage | ColumnStage, lake: Lake, snapshot: Snapshot | None = None) -> Inputs:
    """The tables a stage reads as they are now, and after the review at the versions of a snapshot.

    By default that is the newest approved one. Tables it does not name, such as trajectories, are read as they are now.
    """
    versions = {table: lake.version(table) for table in stage.reads}
    if not stage.snapshot:
        return Inputs(lake, versions)
    chosen = snapshot or approved_snapshot(lake)
    pinned = {table: version for table, version in chosen.versions.items() if table in versions}
    return Inputs(lake, versions | pinned, chosen)


def chosen_resources(declared: Resources, settings: StageResources | None) -> Resources:
    """What a stage declares, with what the settings say instead."""
    if settings is None:
        return declared
    overrides = settings.model_dump(exclude_none=True)
    return replace(declared, gpu_where_any=declared.gpu_where_any and "gpus" not in overrides, **overrides)


def placed_resources(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> Resources:
    """The same with its GPU, where a node of the cluster has one: the command's own machine says nothing about it."""
    if not resources.gpu_where_any or not any(node.get("GPU", 0) >= 1 for node in nodes):
        return resources
    return replace(resources, gpus=1.0)


def most_workers(services: Sequence[Connection | None], concurrency: int) -> int | None:
    """How many workers can have a request under way at once within the budgets; None: no budget limits them.

    With R requests a minute that take REQUEST_S each, R / 60 * REQUEST_S are under way. Of several services the one
    that allows the most decides, since an item need not ask all of them.
    """
    limits = [service.endpoint.requests_per_minute for service in services if service is not None]
    if not limits or any(limit is None for limit in limits):
        return None
    under_way = max(limit for limit in limits if limit is not None) / 60 * REQUEST_S
    return max(1, math.ceil(under_way / max(1, concurrency)))


def refuse_second_writers(stages: Iterable[Stage | ColumnStage]) -> None:
    """Raise if two stages declare one table, or have one name; tables whose contract says `shared` are excepted.

    A row holds the columns of one stage: a second writer would replace the first one's row and be replaced in turn.
    """
    names: set[str] = set()
    writers: dict[str, str] = {}
    for stage in stages:
        if stage.name in names:
            raise GeofixError(f"two steps are named '{stage.name}'; results are kept by the step's name")
        names.add(stage.name)
        for table in stage.writes:
            if table not in TABLES:
                raise GeofixError(f"step {stage.name} writes '{table}', which has no contract in schemas/tables/")
            first = writers.setdefault(table, stage.name)
            if first != stage.name and not TABLES[table].shared:
                raise GeofixError(
                    f"steps {first} and {stage.name} both write table '{table}': give each a table of its own and "
                    f"join them in a third step, or declare the table shared=True in schemas/tables/"
                )
