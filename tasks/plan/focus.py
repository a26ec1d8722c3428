"""The closed loop: places added where the last evaluation on the validation split was weak.

A slice of the evaluation (country, climate belt, kind of picture, cue) weighs by what its answers miss:

    w_s = (n (1 - g_s) + k (1 - g)) / ((n + k) (1 - g))

with g the mean GeoScore as a share of the highest, of all answers and of the slice's n, and k answers' worth of doubt:
a slice of few answers stays near 1. A country's factor is its own weight times the mean weight of the kinds and cues of
its labelled pictures; a cell's is that of its belt. Both stay within 1/b and b (`plan.focus_bound`).

The plain plan stays as it is, held-out splits included. Every evaluation adds `plan.focus_places` training places to
it, and those of earlier evaluations stay. Answers to the benchmark have no part: it would no longer be held out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.plan import PlanSettings
from tasks.geo.cell_split import SPLITS, cell_corner, split_of_cells
from tasks.geo.climate import climate_belt
from tasks.plan.cells import Cells
from tasks.runtime.runner import Inputs

SPLIT = "validation"
DOUBT = 10.0  # k: answers a slice needs to weigh half by its own
BEST = 5000.0  # the highest GeoScore
COLUMNS = ("focus", "focus_factor", "focus_why_json")  # of places

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Focus:
    """What the last evaluation says about where pictures are wanted."""

    key: str  # evaluation_id|snapshot_id
    policy: str
    answers: int
    slices: Mapping[str, Mapping[str, float]]  # slice_by -> slice -> weight, within the bounds
    countries: Mapping[str, float]  # ISO code -> factor; 1 for the others
    bound: float

    def of_cells(self, table: Cells) -> Floats:
        """The factor of each row of cells by its belt."""
        lat = cell_corner(table.cell)[0] + 0.5
        belts = self.slices.get("belt", {})
        return climate_belt(pl.Series(lat)).replace_strict(belts, default=1.0, return_dtype=pl.Float64).to_numpy()

    def why(self, country: str, belt: float) -> str:
        """What made a place's factor, for its row."""
        own = {"country": round(self.countries.get(country, 1.0), 4), "belt": round(belt, 4)}
        return json.dumps({**own, "policy": self.policy, "answers": self.answers}, sort_keys=True)


def last_focus(inputs: Inputs, settings: PlanSettings) -> Focus | None:
    """The focus of the newest evaluation on the validation split; None while there is none."""
    scores = inputs.frame("scores").filter((pl.col("split") == SPLIT) & (pl.col("metric") == "geoscore_mean"))
    scores = scores.drop_nulls("value")
    if scores.is_empty():
        return None
    # Of policies scored by one run, the trained one; a base model's failures are not what is trained away.
    newest = scores.filter(pl.col("run_id") == scores.sort("written_at", "run_id")["run_id"][-1])
    newest = newest.sort(~pl.col("policy").str.starts_with("trained:"), "policy")
    chosen = newest.row(0, named=True)
    mine = pl.col("evaluation_id") == chosen["evaluation_id"]
    mine &= (pl.col("snapshot_id") == chosen["snapshot_id"]) & (pl.col("metric") == "geoscore_mean")
    rows = inputs.frame("score_slices").filter(mine).drop_nulls("value").sort("slice_by", "slice")
    slices: dict[str, dict[str, float]] = {}
    for by, name, value, n in rows.select("slice_by", "slice", "value", "n").iter_rows():
        weight = slice_weight(value / BEST, n, chosen["value"] / BEST)
        slices.setdefault(by, {})[name] = _bounded(weight, settings.focus_bound)
    countries = _country_factors(inputs, slices, settings.focus_bound)
    key = f"{chosen['evaluation_id']}|{chosen['snapshot_id']}"
    return Focus(key, chosen["policy"], chosen["n"], slices, countries, settings.focus_bound)


def slice_weight(score: float, answers: int, overall: float) -> float:
    """How much a slice misses against all answers; 1 where nothing is missed."""
    missed = 1.0 - overall
    return (answers * (1.0 - score) + DOUBT * missed) / ((answers + DOUBT) * missed) if missed > 0 else 1.0


def _bounded(weight: float, bound: float) -> float:
    return float(min(bound, max(1 / bound, weight)))


def _country_factors(inputs: Inputs, slices: Mapping[str, Mapping[str, float]], bound: float) -> dict[str, float]:
    """ISO code -> its own weight times that of the kinds and cues its labelled pictures have, against all pictures'."""
    kinds = inputs.frame("images").select("image_id", "kind")
    labels = inputs.frame("labels").select("image_id", "country_code", "country", "scenes_json")
    rows = labels.join(kinds, on="image_id", how="left").drop_nulls("country_code")
    mixes: dict[str, list[float]] = {}
    own: dict[str, float] = {}
    for code, country, scenes, kind in rows.select("country_code", "country", "scenes_json", "kind").iter_rows():
        own[code] = slices.get("country", {}).get(country, 1.0)
        shown = [name for name, is_there in json.loads(scenes or "{}").items() if is_there == "yes"]
        cues = [weight for name in shown if (weight := slices.get("category", {}).get(name)) is not None]
        mean_cue = float(np.exp(np.mean(np.log(cues)))) if cues else 1.0
        mixes.setdefault(code, []).append(slices.get("kind", {}).get(kind, 1.0) * mean_cue)
    overall = np.mean([one for many in mixes.values() for one in many]) if mixes else 1.0
    return {code: _bounded(own[code] * float(np.mean(mixes[code]) / overall), bound) for code in sorted(mixes)}


def train_weights(table: Cells, settings: PlanSettings, focus: Focus) -> Floats:
    """The weight of each row of cells for added places: eq. 12 times the belt's factor, on training cells alone."""
    splits = split_of_cells(settings.seed, settings.split, settings.buffer_km)
    is_train = splits[table.cell] == SPLITS.index("train")
    return np.where(is_train, table.weights(settings.floor_people) * focus.of_cells(table), 0.0)
