"""Withdrawal: pictures, and everything made of them, leave the lake; models trained on them are named.

The rule is written first, so that no stage takes such a picture again from then on. Then the rows end, with what models
wrote about it, then the bytes go: pictures, views, crops and model views. Killed in between, the same command finishes
what is left.
"""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import polars as pl

from schemas.errors import InputError, NotFound
from tasks.agent.attempt import PHASES
from tasks.lake import Commit, Lake
from tasks.lake.withdrawn import REASON
from tasks.review.evidence import COLLECT
from tasks.review.export import Copy, exports_of
from tasks.review.site import renew_site
from tasks.review.site.thumbnails import forget_pictures
from tasks.runtime.items.identity import code_version, digest, new_run_id
from tasks.runtime.items.withdrawals import STAGE, delete_files, end_rows

Rule = Literal["image", "creator", "licence"]

SHORTEST = 6  # letters of an id that is cut short
_FACTS = ("image_id", "source", "source_id", "sha256", "extension", "creator", "licence", "place_id", "stage")


@dataclass(frozen=True)
class Model:
    """A model that was trained on a withdrawn picture, or made from one that was."""

    model_id: str
    training_stage: str
    checkpoint: str
    samples: int  # of withdrawn pictures among its own training rows; 0: only a model before it had some


@dataclass(frozen=True)
class Withdrawal:
    """What a withdrawal took out."""

    rule: Rule
    value: str
    image_ids: tuple[str, ...]
    rows: dict[str, int]  # ended, by table
    files: int  # deleted
    models: tuple[Model, ...]
    exports: tuple[Copy, ...]  # earlier ones that hold a withdrawn picture
    alike: tuple[str, ...] = ()  # where nothing matched: creators or licences of a similar name


def withdraw(lake: Lake, wanted: str, why: str, who: str) -> Withdrawal:
    """Take out what an image id, `creator:NAME` or `licence:NAME` means; a bare name is looked up among all three."""
    if not why.strip():
        raise InputError("say why it is withdrawn: --why REASON")
    images = _pictures(lake)
    rule, value, met = _meant(images, wanted)
    run_id, now = new_run_id("withdraw"), datetime.now(UTC)
    commit = Commit(run_id, 1, stage=STAGE, code_version=code_version())
    if rule != "image" and not lake.is_full():
        # First: a run that stores a picture from now on sees the rule, what was stored before is read here.
        _write_rules(lake, rule, value, met.clear(), why.strip(), who.strip(), now, commit)
        images = _pictures(lake)
        met = images.filter(pl.col(rule) == value)
    # The same photo may be there for another place, or from another source.
    same = pl.col("sha256").is_in(met["sha256"].implode()) | (
        pl.struct("source", "source_id").is_in(met.select(s=pl.struct("source", "source_id"))["s"].implode())
    )
    met = images.filter(same) if met.height else met
    image_ids = sorted(set(met["image_id"]))
    files = list(met.select("sha256", "extension").iter_rows())
    # Rows need space, which on a full disk the pictures have to give.
    deleted = delete_files(lake, image_ids, files) if lake.is_full() else 0
    _write_rules(lake, rule, value, met, why.strip(), who.strip(), now, replace(commit, batch=2))
    _look_again(lake, met, now, commit)
    rows = end_rows(lake, image_ids, f"{REASON}: {why.strip()}", commit)
    deleted += delete_files(lake, image_ids, files)
    deleted += forget_pictures(lake, image_ids)
    for snapshot in lake.read("snapshots").to_dicts():
        renew_site(lake, snapshot)
    models, exports = tuple(trained_on(lake, image_ids)), tuple(exports_of(lake, image_ids))
    alike = () if image_ids else tuple(_alike(images, rule, value))
    return Withdrawal(rule, value, tuple(image_ids), rows, deleted, models, exports, alike)


def _pictures(lake: Lake) -> pl.DataFrame:
    return lake.collect("images", lake.scan("images").select(_FACTS)).unique(maintain_order=True)


def _alike(images: pl.DataFrame, rule: Rule, value: str) -> list[str]:
    known = {str(name).casefold(): str(name) for name in images[rule].drop_nulls().unique().sort()}
    return [known[name] for name in difflib.get_close_matches(value.casefold(), known, 3)]


def _meant(images: pl.DataFrame, wanted: str) -> tuple[Rule, str, pl.DataFrame]:
    prefix, _, rest = wanted.partition(":")
    if prefix in ("creator", "licence") and rest.strip():
        rule: Rule = "creator" if prefix == "creator" else "licence"
        return rule, rest.strip(), images.filter(pl.col(rule) == rest.strip())
    name = rest.strip() if prefix == "image" else wanted.strip()
    if len(name) >= SHORTEST:
        matches = images.filter(pl.col("image_id").str.starts_with(name))
        ids = sorted(set(matches["image_id"]))
        if len(ids) > 1 and name not in ids:
            raise InputError(f"image '{name}' is ambiguous: {', '.join(ids[:5])}")
        if ids:
            return "image", name if name in ids else ids[0], matches.filter(pl.col("image_id") == ids[0])
    if prefix != "image":
        for column in ("creator", "licence"):
            if images.filter(pl.col(column) == name).height:
                raise InputError(f"'{name}' is a {column}; to withdraw all its pictures, say {column}:{name}")
    raise NotFound(
        f"no picture has the id '{name[:80]}' (at least {SHORTEST} letters of it); a creator is withdrawn with "
        "creator:NAME, a licence with licence:NAME"
    )


def _write_rules(
    lake: Lake, rule: Rule, value: str, met: pl.DataFrame, why: str, who: str, now: datetime, commit: Commit
) -> None:
    """One row for a creator or licence, which also keeps out what comes later, and one for each picture it met."""
    told = {"rule": rule, "value": value, "why": why, "who": who, "withdrawn_at": now}
    rows = [{**told, "withdrawal_id": digest(rule, value)}] if rule != "image" else []
    for picture in met.unique("image_id", keep="last", maintain_order=True).to_dicts():
        facts = {name: picture[name] for name in ("image_id", "source", "source_id", "sha256")}
        rows.append({**told, **facts, "withdrawal_id": digest(rule, value, picture["image_id"])})
    known = set(lake.read("withdrawals", columns=["withdrawal_id"])["withdrawal_id"])
    system = {"stage": STAGE, "run_id": commit.run_id, "written_at": now}
    new = [{**row, **system, "item_id": row["withdrawal_id"]} for row in rows if row["withdrawal_id"] not in known]
    if new:
        lake.append("withdrawals", new, commit)


def _look_again(lake: Lake, met: pl.DataFrame, now: datetime, commit: Commit) -> None:
    """Tell collect that the pictures' places lack one: each is collected again by the next run."""
    checks = {row["subject_id"]: row for row in lake.read("checks").to_dicts()}
    rows = []
    for picture in met.filter(pl.col("stage") == COLLECT).unique("image_id").sort("image_id").to_dicts():
        image_id = picture["image_id"]
        before = checks.get(image_id) or {"news": 0, "nth": 0, "status": ""}
        if before["status"] != REASON:
            told = {"subject_id": image_id, "subject": "image", "place_id": picture["place_id"], "status": REASON}
            system = {"stage": STAGE, "item_id": image_id, "made_from": digest(image_id, REASON), "written_at": now}
            counts = {"news": before["news"] + 1, "nth": before["nth"] + 1, "checked_at": now}
            rows.append({**told, **system, **counts, "run_id": commit.run_id})
    if rows:
        lake.upsert("checks", rows, commit)


def trained_on(lake: Lake, image_ids: Iterable[str]) -> list[Model]:
    """The models that saw one of the pictures in training, and those made from them, in the order of training."""
    models = lake.collect("models", lake.scan("models")).sort("written_at").unique("model_id", keep="last")
    runs = {row["run_id"]: row for row in lake.read("runs", columns=["run_id", "input_versions_json"]).to_dicts()}
    wanted, rows = list(image_ids), models.sort("written_at", "model_id").to_dicts()
    own = {row["model_id"]: _own_samples(lake, row, runs, wanted) for row in rows}
    model_ids = {model_id for model_id, count in own.items() if count}
    while more := {row["model_id"] for row in rows if row["parent_id"] in model_ids} - model_ids:
        model_ids |= more
    return [
        Model(row["model_id"], row["training_stage"], row["checkpoint"], own[row["model_id"]])
        for row in rows
        if row["model_id"] in model_ids
    ]


def _own_samples(lake: Lake, model: dict[str, Any], runs: dict[str, dict[str, Any]], image_ids: list[str]) -> int:
    """How many of the rows that a model was trained on are of these pictures."""
    is_policy = model["training_stage"] in PHASES
    table = "samples" if is_policy else "swarm_rounds"
    version = json.loads((runs.get(model["run_id"]) or {}).get("input_versions_json") or "{}").get(table)
    seen = lake.scan(table, version).filter(
        pl.col("image_id").is_in(image_ids),
        pl.col("training_stage") == model["training_stage"] if is_policy else pl.lit(True),
        # At a known version the rows that were live; else every row there ever was: rather too many models.
        pl.col("tombstone").is_null() if version is not None else pl.lit(True),
    )
    return int(lake.collect(table, seen.select(pl.len())).item())
