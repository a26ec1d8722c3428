"""Runs the rows of a paper's table with the pipeline's own flows, and puts our figures beside the printed ones.

Each row is a configuration: the recipe's, the profile's and the user's settings, and the row's on top. Models are named
by their settings and samples, answers by policy and settings, so rows share what they have in common, and what is
finished is not done again. A row's figures are stored when it is done; the same command goes on after it.
"""

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from flows.display import display
from flows.options import RunOptions
from flows.order import flow_of
from flows.recording import run_flow
from flows.servers import held_offline_world
from flows.trained import OWN_PRICE, ModelServer, model_server
from schemas.config import Config
from schemas.errors import GeofixError, InputError
from schemas.load import ConfigError
from schemas.paper_tables import Paper, PaperTable, PictureSet, TableRow
from schemas.settings.models import NOT_UP
from tasks.agent.attempt import TRAINED, newest_model
from tasks.evaluate.reproduction import Answered, Reproduction, RowResult, measure
from tasks.lake import Lake
from tasks.reward.metrics import Metric
from tasks.runtime.items.outcome import StageResult
from tasks.runtime.runner import digest
from tasks.runtime.snapshots import Snapshot, approved_snapshot
from tasks.runtime.stage import open_inputs
from tasks.services.errors import ServiceError
from tasks.train.base_checkpoint import base_checkpoint, base_name
from tasks.train.chain import chain
from tasks.train.samples import STAGE as SAMPLES
from tasks.train.samples import compute as compute_samples

_SECTIONS = ("synthesize", "difficulty", "train", "evaluate")
FAMILIES = {"qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL", "qwen3_vl_moe": "Qwen3-VL with experts"}  # of `tiny`
_NAN = float("nan")
_EMPTY = Metric("", _NAN, _NAN, _NAN, 0)
_SHOWN = 12  # settings named in the report; its JSON has all
# What an evaluation asks beside a row's own: nothing.
_ALONE = {
    "evaluate.policies": [],
    "evaluate.trained": False,
    "evaluate.scaling.policies": [],
    "evaluate.swarm.agents": [],
}


class RowFailed(GeofixError):
    """A row could not be run; the others can."""


def override(name: str, value: Any) -> str:
    """A setting as `--set` takes it."""
    return f"{name}={json.dumps(value)}"


@dataclass
class Sweep:
    """One table, run row by row."""

    name: str
    paper: Paper
    table: PaperTable
    options: RunOptions
    models: Mapping[str, str] = field(default_factory=dict)  # row -> role that answers or verifies for it
    places: int | None = None
    failed: int = 0  # rows of tables that failed and are retried by the next run
    _snapshot: Snapshot = field(init=False)
    _sets: Sequence[PictureSet | None] = ()
    _stored: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows that are done, by key
    _trained: str = ""  # what was trained last
    _servers: dict[str, ModelServer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [row.name for row in self.table.rows if row.role or row.policy == "base"]
        known += ["base"] if any(row.policy == "base" for row in self.table.rows) else []
        for name in self.models:
            if name not in known:
                takes = f"those that do: {'; '.join(known)}" if known else "none of this table does"
                raise InputError(f"--model {name}=…: no row of that name takes a model; {takes}")

    @functools.cached_property
    def _lake(self) -> Lake:
        return Lake(self._config({}).lake)

    @property
    def folder(self) -> str:
        return f"reports/reproduce/{self.name}-{self.table.kind}-{self.table.number}"

    def run(self) -> Reproduction:
        """Every row that can be run, and the table."""
        config, lake = self._config({}), self._lake
        with contextlib.closing(self), held_offline_world(config.offline, lake.state / "offline-world.log"):
            return self._run(config, lake)

    def _run(self, config: Config, lake: Lake) -> Reproduction:
        if self.places is not None:
            self._refresh()
        self._snapshot = approved_snapshot(lake, self.options.snapshot)
        self._sets, conditions = picture_sets(self.table, lake)
        file = f"{self.folder}/rows.json"
        self._stored = json.loads(lake.blobs.get(file)) if lake.blobs.exists(file) else {}
        rows: dict[str, RowResult] = {}
        for at, row in enumerate(self.table.rows, 1):
            if not (row.policy or row.answer or row.role):
                continue  # another system's figures
            display.get().say(f"row {at} of {len(self.table.rows)}: {row.name}")
            rows[row.name] = self._row(row)
            lake.blobs.put(file, json.dumps(self._stored, ensure_ascii=False, indent=1).encode())
        changed = self._changed(config, any(row.model_id for row in rows.values()))
        conditions = [*self._differences(config, rows, changed), *conditions]
        about: dict[str, Any] = {"lake": lake.uri, "snapshot": self._snapshot.snapshot_id, "base": config.train.base}
        about |= {"profile": config.profile, "split": config.evaluate.split, "settings": changed}
        sets = tuple(self._sets)
        reproduction = Reproduction(self.name, self.paper, self.table, sets, rows, tuple(conditions), about)
        report = json.dumps(reproduction.as_json(), ensure_ascii=False, indent=1)
        lake.blobs.put(f"{self.folder}/table.md", reproduction.markdown().encode())
        lake.blobs.put(f"{self.folder}/table.json", report.encode())
        return reproduction

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()

    # One row --------------------------------------------------------------------------------------------------

    def _row(self, row: TableRow) -> RowResult:
        began = time.monotonic()
        default = row.role.default if row.role else self.models.get("base") if row.policy == "base" else None
        role = self.models.get(row.name, default)
        if row.role and role is None:
            return RowResult(not_run=f"name the role of a model that answers for it, --model '{row.name}=ROLE'")
        try:
            settings = self._settings(row, role)
            key = self._key(row, {**settings, "role": role})
            if key in self._stored:
                return RowResult.from_json(self._stored[key])
            model_id, policy, extra = self._policy(row, role, settings)
            cells = self._cells(row, model_id, policy, {**settings, **extra})
        except (GeofixError, ConfigError, ServiceError) as error:
            self.failed += 1
            return RowResult(not_run=" ".join(str(error).split()))
        row_result = RowResult(tuple(cells), policy, model_id, seconds=round(time.monotonic() - began, 1))
        self._stored[key] = row_result.as_json()
        return row_result

    def _settings(self, row: TableRow, role: str | None) -> dict[str, Any]:
        """What the row sets, on top of the user's settings."""
        profile = self.options.profile or "offline"
        merged = {**self.table.settings, **row.settings, **row.by_profile.get(profile, {})}
        if row.role and role is not None and row.role.setting != "evaluate.policies":
            merged[row.role.setting] = role
        config = self._config(merged)
        for name, part in row.shares.items():
            value: Any = config
            for step in name.split("."):
                value = getattr(value, step)
            if name.endswith("max_pictures"):
                pictures = self._lake.read("labels").filter(pl.col("split") == "train").height
                value = pictures if value is None else min(value, pictures)
            if value is None:
                raise RowFailed(f"it takes a share of {name}, which is not set: give --set {name}=N")
            merged[name] = max(1, round(part * value))
        return merged

    def _policy(
        self, row: TableRow, role: str | None, settings: Mapping[str, Any]
    ) -> tuple[str | None, str, dict[str, Any]]:
        """(the model's id, the policy as evaluation is to name it, settings that serve it), after its training."""
        config = self._config(settings)
        phases = config.train.phases
        if row.policy is None and row.answer:
            self._train(settings, config)  # what the method itself learns
        if row.policy is None or (row.policy == "base" and role is not None):
            return None, role or row.answer or "", {}
        if row.policy == "base":
            if config.train.base == "tiny" and "cold_start" in phases:
                self._flow("synthesize", settings)  # its tokenizer is made of the samples' text
            return None, *self._base(config)
        if row.policy not in phases:
            raise RowFailed(f"its model is of the phase {row.policy}, but train.phases is {list(phases)}")
        upto = {**settings, "train.phases": list(phases[: phases.index(row.policy) + 1])}
        self._train(upto, config)
        return (model_id := self._model(row.policy, self._config(upto))), f"{TRAINED}{model_id}", {}

    def _train(self, settings: Mapping[str, Any], config: Config) -> None:
        first = "synthesize" if "cold_start" in config.train.phases else "difficulty"
        resolved = self._config(settings)
        of = digest(*(getattr(resolved, section).identity() for section in ("synthesize", "difficulty", "train")))
        if of != self._trained:  # the samples of the lake are those of the last training
            self._trained = ""
            self._flow("pipeline", settings, first=first, last="train")
            self._trained = of

    def _model(self, phase: str, config: Config) -> str:
        """The id of the row's model; RowFailed if there was nothing to train it on, or Pass@K was another's."""
        links = {str(link.phase): link for link in chain(self._lake.read("samples"), config.train)}
        mine = links[phase]
        models = self._lake.read("models")
        if not mine.samples:
            why = "Pass@K kept none" if phase == "grpo" and config.train.grpo.by_pass_at_k else "no trajectory"
            raise RowFailed(f"there are no samples to train {phase} on ({why}): give more places or more steps")
        if mine.model_id not in models["model_id"]:
            raise RowFailed(f"its {phase} model was not trained; `geofix show failures` says why")
        tried = config.difficulty.policy
        if phase == "grpo" and config.train.grpo.by_pass_at_k and tried in links:
            newest = newest_model(models, config.train.recipe, tried)
            if newest != links[tried].model_id:
                raise RowFailed(
                    f"Pass@K is of the newest {tried} model of the lake, {newest}, which is another base's or was "
                    "trained with other settings: use another lake"
                )
        return mine.model_id

    def _base(self, config: Config) -> tuple[str, dict[str, Any]]:
        """The base model as a role of its own, served until the sweep ends."""
        samples, _ = compute_samples(open_inputs(SAMPLES, self._lake, self._snapshot), config.train)
        name = base_name(samples, config.train)
        if name not in self._servers:
            folder = base_checkpoint(samples, config.train, self._lake.state / "bases")
            self._servers[name] = model_server(folder, self._lake.state / f"{name}.log", name)
        server = self._servers[name]
        server.ensure()
        endpoint = {"base_url": server.url, "identity_url": NOT_UP, "prices": {name: OWN_PRICE.model_dump()}}
        return name, {"models.endpoints": {name: endpoint}, "models.roles": {name: {"endpoint": name, "model": name}}}

    def _cells(self, row: TableRow, model_id: str | None, policy: str, settings: dict[str, Any]) -> list[Metric]:
        if self.table.measures == "difficulty":
            self._flow("difficulty", settings)
        cells: list[Metric] = []
        for pictures in self._sets:
            if pictures is None:
                cells += [_EMPTY] * len(self.table.columns)
                continue
            own = {"evaluate.swarm.agents"} if row.policy is None and row.answer else set()  # the recipe's swarm
            overrides = {**{name: value for name, value in _ALONE.items() if name not in own}, **settings}
            if pictures.source:
                overrides["evaluate.source"] = pictures.source
            if row.answer is None:
                overrides["evaluate.policies"] = [policy]
            elif row.policy is not None:
                overrides["evaluate.scaling.policies"] = [policy]
            if self.table.measures == "answers":
                self._flow("evaluate", overrides)
            evaluate = self._config(overrides).evaluate
            answered = Answered(self._lake, policy, evaluate, self._snapshot, model_id, row.answer)
            cells += [measure(column, row, pictures.slice, answered) for column in self.table.columns.values()]
        return cells

    # Settings and flows ---------------------------------------------------------------------------------------

    def _config(self, settings: Mapping[str, Any]) -> Config:
        return self._options(settings).resolve()

    def _options(self, settings: Mapping[str, Any]) -> RunOptions:
        mine = [override(name, value) for name, value in settings.items()]
        return self.options.model_copy(update={"recipe": self.name, "overrides": [*self.options.overrides, *mine]})

    def _flow(self, name: str, settings: Mapping[str, Any], **parameters: Any) -> None:
        results: list[StageResult] = run_flow(flow_of(name), options=self._options(settings), **parameters)
        failed = sum(result.failed for result in results)
        if failed:
            raise RowFailed(f"{failed:,} rows of {name} failed and are retried by the next run: `geofix show failures`")

    def _refresh(self) -> None:
        """The places that were requested: planned, collected, curated, and approved by rule in an offline world."""
        options = self._options({"plan.places": self.places})
        is_offline = (options.profile or "offline") != "production"
        run_flow(flow_of("refresh"), options=options.model_copy(update={"demo": is_offline, "snapshot": None}))

    def _key(self, row: TableRow, settings: Mapping[str, Any]) -> str:
        """Changes with everything that a row's figures depend on."""
        config = self._config({name: value for name, value in settings.items() if name != "role"})
        of = {section: getattr(config, section).identity() for section in _SECTIONS}
        of["beside"] = {name: value for name, value in settings.items() if name.partition(".")[0] not in _SECTIONS}
        shown = [None if picture_set is None else picture_set.model_dump() for picture_set in self._sets]
        columns = [column.model_dump() for column in self.table.columns.values()]
        made_of = row.model_dump(exclude={"printed"}), of, shown, columns, self._snapshot.snapshot_id
        return digest("row", self.table.label, *made_of)

    # Words ----------------------------------------------------------------------------------------------------

    def _changed(self, config: Config, is_trained: bool) -> dict[str, Any]:
        """Settings of what was run that are not the recipe's own, those of rows aside."""
        recipe = RunOptions(recipe=self.name, profile="production").resolve()
        sections = [*(("train", "difficulty") if is_trained else ()), "evaluate"]
        phases = [f"train.{phase}." for phase in ("sft", "cold_start", "grpo") if phase not in config.train.phases]
        beside = (*phases, *(("difficulty.",) if not config.train.grpo.by_pass_at_k else ()), *_ALONE, "train.base")
        changed: dict[str, Any] = {}
        for section in sections:
            ours, theirs = (flat(getattr(settings, section).identity(), section) for settings in (config, recipe))
            changed |= {name: value for name, value in ours.items() if theirs.get(name) != value}
        return {name: value for name, value in changed.items() if not name.startswith(beside)}

    def _differences(self, config: Config, rows: Mapping[str, RowResult], changed: Mapping[str, Any]) -> Iterator[str]:
        base = config.train.base
        tiny = config.train.tiny
        base_name = f"a {FAMILIES[tiny.family]} of {tiny.layers} layers with random weights" if base == "tiny" else base
        names_by_policy: dict[str, list[str]] = {}
        for name, row in rows.items():
            if row.policy and not row.model_id:
                names_by_policy.setdefault(row.policy, []).append(name)
        roles = [
            f"{self._served(config, policy)} answers for {', '.join(names)}"
            for policy, names in names_by_policy.items()
        ]
        if any(row.model_id for row in rows.values()) or not roles:
            roles.insert(0, f"here {base_name} is trained")
        yield f"Model: the paper has {self.paper.model}; {'; '.join(roles)}."
        models = self._lake.read("models")
        trained = models.filter(pl.col("model_id").is_in([row.model_id for row in rows.values()]))
        parents = models.filter(pl.col("model_id").is_in(trained["parent_id"].drop_nulls().implode()))
        done = [
            f"{row['training_stage']} {row['samples']:,} samples in {row['steps']:,} step{'s' * (row['steps'] != 1)}"
            for row in pl.concat([parents, trained]).unique("training_stage", keep="last").sort("samples").to_dicts()
        ]
        yield f"Data: the paper has {self.paper.data}; here {'; '.join(done) or 'nothing was trained'}."
        world = "the offline world on this machine: drawn pictures, a small web, models that follow rules"
        here = world if config.offline.serve else f"the services of profile {config.profile}"
        yield f"World: the paper has {self.paper.world}; here {here}."
        if changed:
            named = [f"{name}={json.dumps(value)}" for name, value in list(changed.items())[:_SHOWN]]
            more = f" and {len(changed) - _SHOWN} more (table.json)" if len(changed) > _SHOWN else ""
            yield f"Settings that are not the recipe's: {', '.join(named)}{more}."

    def _served(self, config: Config, policy: str) -> str:
        if policy in self._servers:
            return "the untrained base"
        return f"role {policy} (model {config.models.role(policy).model or policy})"


def flat(value: Mapping[str, Any], before: str) -> dict[str, Any]:
    """`section.field` -> value."""
    flattened: dict[str, Any] = {}
    for name, inner in value.items():
        flattened |= flat(inner, f"{before}.{name}") if isinstance(inner, Mapping) else {f"{before}.{name}": inner}
    return flattened


def picture_sets(table: PaperTable, lake: Lake) -> tuple[list[PictureSet | None], list[str]]:
    """The pictures that stand for each of the paper's sets, none where the lake has none; and that in words.

    Without the paper's own pictures the lake's benchmark stands for the first set, and the others are left out.
    """
    sources = set(lake.read("images", columns=["source"])["source"])
    has_tiers = lake.read("labels", columns=["tier"])["tier"].null_count() < lake.read("labels").height
    sets_read: list[PictureSet | None] = []
    words: list[str] = []
    for wanted in table.sets:
        missing = wanted.source is not None and wanted.source not in sources
        if missing:
            name = wanted.source
            words.append(
                f"Pictures: {wanted.name} is not in the lake (`geofix ingest … --name {name}` brings it in): "
                + ("the lake's own benchmark stands for it." if not sets_read else "its columns are empty.")
            )
        part = wanted.slice
        if part and part.startswith("tier=") and not has_tiers:
            part = None
            words.append(f"Pictures: {wanted.name} needs tiers, which the labels lack (curate.tiers.models).")
        resolved = wanted.model_copy(update={"source": None if missing else wanted.source, "slice": part})
        seen = [(picture_set.source, picture_set.slice) for picture_set in sets_read if picture_set]
        empty = bool(sets_read) and (missing or (resolved.source, resolved.slice) in seen)
        sets_read.append(None if empty else resolved)
    return sets_read, words
