"""The judges against people: how far their verdicts agree with human labels, and which threshold agrees best.

Labels are a CSV of `image_id` (its first letters will do) or `sha256`, and `localizable`: yes or no. Intervals are
95 %: Wilson's for shares, the bootstrap's for kappa and the threshold, over pictures, with a fixed seed.
"""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.errors import InputError
from tasks.curate.votes import LOCALIZABLE, Rule, combined
from tasks.lake import Lake

DRAWS = 1000
YES, NO = {"yes", "1", "true", "localizable", "y"}, {"no", "0", "false", "non_localizable", "landmark", "n"}
COMBINED = "all judges"
MOST_SHOWN = 20

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Figure:
    """A figure and the interval around it; NaN where there is nothing to count."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "-" if math.isnan(self.value) else f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Difference:
    """A picture on which judge and person differ."""

    image_id: str
    person: str
    judge: str
    score: float
    reason: str


@dataclass(frozen=True)
class Calibration:
    """One judge, or all of them together, against the labels."""

    judge: str
    pictures: int
    precision: Figure  # of the pictures it would keep, those a person calls localizable
    recall: Figure  # of the pictures a person calls localizable, those it would keep
    kappa: Figure  # Cohen's: agreement beyond chance
    threshold: Figure  # the `curate.labels.min_score` with the highest kappa
    kappa_at_threshold: float
    differences: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(lake: Lake, labels: Path, rule: Rule, min_score: float) -> list[Calibration]:
    """Every judge of the lake against the labels of a file, and their votes combined where there are several."""
    judged = lake.read("judgements")
    people = read_labels(labels, judged)
    pictures = judged.join(people, on="image_id").filter(pl.col("problem").is_null())
    if not pictures.height:
        raise InputError(f"{labels}: none of its pictures has a verdict in this lake; run geofix curate first")
    calibrations = [
        _compare(str(model), group, min_score) for (model,), group in sorted(pictures.group_by("model"), key=_by_name)
    ]
    if len(calibrations) > 1:
        votes = combined(pictures.select(judged.columns), rule).rename(
            {"localizability_score": "score", "judge_reason": "reason"}
        )
        calibrations.append(_compare(COMBINED, votes.join(people, on="image_id"), min_score))
    return calibrations


def _by_name(item: Any) -> str:
    return str(item[0])


def read_labels(path: Path, judged: pl.DataFrame) -> pl.DataFrame:
    """`image_id` and `person` (true: localizable) of each line; what cannot be read is refused with its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    key = next((name for name in ("image_id", "sha256") if name in columns), None)
    if key is None or "localizable" not in columns:
        raise InputError(
            f"{path}: has columns {', '.join(columns) or 'none'}; it needs image_id or sha256, and localizable"
        )
    known: list[tuple[str, str]] = judged.select(text=key, image="image_id").unique().rows()
    labels: dict[str, bool] = {}
    for number, row in enumerate(rows, start=2):
        word = (row["localizable"] or "").strip().lower()
        if word not in YES | NO:
            raise InputError(f"{path}: line {number}: localizable is {word[:20]!r}; write yes or no")
        wanted = (row[key] or "").strip()
        matching = {image_id for text, image_id in known if wanted and text.startswith(wanted)}
        if len(matching) > 1 and key == "image_id":
            raise InputError(f"{path}: line {number}: {wanted} begins {len(matching)} image ids; write more letters")
        for image_id in matching:
            if labels.setdefault(image_id, word in YES) != (word in YES):
                raise InputError(f"{path}: line {number}: {wanted} is labelled yes and no")
    schema = {"image_id": pl.String, "person": pl.Boolean}
    return pl.DataFrame({"image_id": list(labels), "person": list(labels.values())}, schema=schema)


def _compare(judge: str, rows: pl.DataFrame, min_score: float) -> Calibration:
    rows = rows.sort("image_id")
    person = rows["person"].to_numpy().astype(bool)
    says = (rows["localizability"] == LOCALIZABLE).to_numpy().astype(bool)
    score = rows["score"].to_numpy()
    kept = says & (score >= min_score)
    random = np.random.default_rng(0)
    draws = random.integers(0, len(person), (DRAWS, len(person)))
    best = best_threshold(person, says, score)
    differing = np.flatnonzero(kept != person)
    # Those first of which the judge is surest: they teach most about it.
    order = differing[np.argsort(-np.abs(score[differing] - best), kind="stable")][:MOST_SHOWN]
    words = {True: "localizable", False: "not localizable"}
    return Calibration(
        judge=judge,
        pictures=len(person),
        precision=_share(int((kept & person).sum()), int(kept.sum())),
        recall=_share(int((kept & person).sum()), int(person.sum())),
        kappa=_around(kappa(person, kept), [kappa(person[draw], kept[draw]) for draw in draws]),
        threshold=_around(best, [best_threshold(person[draw], says[draw], score[draw]) for draw in draws[:200]]),
        kappa_at_threshold=kappa(person, says & (score >= best)),
        differences=tuple(
            Difference(row["image_id"], words[row["person"]], row["localizability"], row["score"], row["reason"] or "")
            for row in rows[order.tolist()].to_dicts()
        ),
    )


def kappa(person: Bools, judge: Bools) -> float:
    """Cohen's kappa: (observed - expected) / (1 - expected); 1 where both say the same of every picture."""
    observed = float((person == judge).mean())
    expected = float(person.mean() * judge.mean() + (1 - person.mean()) * (1 - judge.mean()))
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)


def best_threshold(person: Bools, says: Bools, score: NDArray[np.float64]) -> float:
    """The lowest score from which on a picture is kept, such that kappa is highest; ties go to the lower one."""
    levels = np.unique(np.concatenate([[0.0], score[says]]))
    return float(levels[int(np.argmax([kappa(person, says & (score >= level)) for level in levels]))])


def _share(hits: int, total: int) -> Figure:
    """A share with Wilson's interval."""
    if not total:
        return Figure(math.nan, math.nan, math.nan)
    z, p = 1.959964, hits / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return Figure(p, max(0.0, middle - half), min(1.0, middle + half))


def _around(value: float, drawn: Sequence[float]) -> Figure:
    low, high = np.quantile(np.array(drawn), (0.025, 0.975))
    return Figure(value, float(low), float(high))


def render(calibrations: Sequence[Calibration], line: Callable[[str], str] = lambda image_id: image_id) -> str:
    """The report for a terminal; `line` says how a picture is looked at."""
    parts = []
    for calibration in calibrations:
        parts += [
            f"{calibration.judge}: {calibration.pictures} pictures with a verdict and a label",
            f"  precision   {calibration.precision}",
            f"  recall      {calibration.recall}",
            f"  kappa       {calibration.kappa}",
            f"  best curate.labels.min_score   {calibration.threshold}, kappa {calibration.kappa_at_threshold:.3f}",
        ]
        if calibration.differences:
            parts.append(f"  they differ on (the surest {len(calibration.differences)}):")
        parts += [
            f"    {line(each.image_id)}   person: {each.person}; judge: {each.judge} {each.score:g}, {each.reason[:80]}"
            for each in calibration.differences
        ]
    return "\n".join(parts)
