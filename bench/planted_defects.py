"""640 planted defects of 16 kinds among 1,600 clean pictures: which are found and named, and how many false alarms.

The pictures go through the steps of curation (pixels, duplicates, addresses, labels) and the checks of the review. The
judge is left out: every picture gets the verdict `localizable`, so that no defect is found by chance of a verdict.
Two kinds are planted into the finished labels, as a careless edit would: they are the review's to find. Copies that
were cropped by a tenth, turned by 3 degrees, framed or shifted over their seam are to be named near-duplicates; the
copy with exchanged coordinates stands in the scarcer split, and the picture it is of must stay.
"""

import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl

from bench.goals import Goal, judge
from schemas.settings.curate import CurateSettings
from tasks.curate import address, duplicates, labels, quality
from tasks.geo.atlas import gazetteer, place_names_table
from tasks.geo.labels import labels_of
from tasks.geo.near import pairs_within
from tasks.imaging.decode import jpeg
from tasks.lake import Commit, Lake
from tasks.review.point_checks import address_agrees, month_in_line
from tasks.runtime.stage import open_inputs

CLEAN, EACH = 1600, 40
KINDS = (
    "swapped_coordinates", "near_duplicate", "wrong_country", "missing_licence", "blurred", "wrong_label", "off_plan",
    "creator_leak", "drifted_month", "mirrored_duplicate", "cropped", "turned", "framed", "seam_shifted",
    "swapped_copy", "other_country",
)  # fmt: skip
NAMED = {
    **dict.fromkeys(("cropped", "turned", "framed", "seam_shifted"), "near_duplicate"),
    "swapped_copy": "swapped_coordinates",
    "other_country": "wrong_country",
}  # the reason that names a kind, where it is not the kind itself
NOW = datetime(2025, 6, 1, tzinfo=UTC)
SPLITS = ("train", "train", "train", "validation", "benchmark")
Row = dict[str, Any]


def scene(number: int) -> np.ndarray:
    """A street of its own: sky, house fronts with windows, road; a panorama for every third number."""
    random = np.random.default_rng(number)
    width, height = (400, 200) if number % 3 == 0 else (360, 270)
    picture = np.empty((height, width, 3), np.uint8)
    horizon = int(height * random.uniform(0.55, 0.75))
    picture[:horizon] = random.integers((120, 150, 190), (190, 210, 250))
    picture[horizon:] = random.integers(70, 120)
    left = 0
    while left < width:
        wide = int(random.integers(18, 80))
        top = int(random.integers(height // 8, horizon - 10))
        cv2.rectangle(picture, (left, top), (left + wide - 2, horizon), random.integers(20, 235, 3).tolist(), -1)
        for x in range(left + 3, left + wide - 8, 11):
            for y in range(top + 4, horizon - 8, 14):
                cv2.rectangle(picture, (x, y), (x + 5, y + 7), random.integers(0, 255, 3).tolist(), -1)
        left += wide
    for _ in range(12):
        x, y = int(random.integers(0, width)), int(random.integers(horizon, height))
        cv2.line(picture, (x, y), (x + int(random.integers(-40, 40)), y + 6), (230, 230, 225), 2)
    return picture


def cropped(source: np.ndarray, number: int) -> np.ndarray:
    """A tenth less: on all sides together, on one side, or on two."""
    height, width = source.shape[:2]
    down, across = round(height * 0.1), round(width * 0.1)
    kinds = (
        source[down // 2 : -(down // 2), across // 2 : -(across // 2)],
        source[:, across:],
        source[down:, :-across],
    )
    return np.ascontiguousarray(kinds[number % 3])


def turned(source: np.ndarray, number: int) -> np.ndarray:
    """Turned by 3 degrees to either side, with black corners or cut to where there are none."""
    height, width = source.shape[:2]
    by = cv2.getRotationMatrix2D((width / 2, height / 2), 3 if number % 2 else -3, 1)
    found = cv2.warpAffine(source, by, (width, height))
    margin = round(height * 0.05)
    return found if number % 4 < 2 else np.ascontiguousarray(found[margin:-margin, margin:-margin])


def framed(source: np.ndarray, number: int) -> np.ndarray:
    """In a black, grey or white frame of 2 to 8 per cent."""
    wide, level = round(max(source.shape) * (0.02 + 0.01 * (number % 7))), (0, 128, 255)[number % 3]
    return cv2.copyMakeBorder(source, *[wide] * 4, cv2.BORDER_CONSTANT, value=(level,) * 3)


class World:
    """Places of several splits, a clean picture at each, and the planted ones."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.random = lake, np.random.default_rng(11)
        self.places: list[Row] = []
        self.images: list[Row] = []
        self.kind_of: dict[str, str] = {}  # image id -> what is wrong with it
        self.copied: list[str] = []  # pictures whose copies have exchanged coordinates in a scarcer split
        towns = gazetteer().with_row_index().filter(pl.col("population") > 5000)
        towns = towns.sample(fraction=1, shuffle=True, seed=4)
        lat, lon = towns["lat"].to_numpy(), towns["lon"].to_numpy()
        one, two = pairs_within(lat, lon, lat, lon, 12)
        crowded = set(one[one != two].tolist())
        codes = labels_of(lat, lon)["country_code"]
        own = (codes == towns["country"]).fill_null(False).to_list()
        lone = [row for row in range(towns.height) if row not in crowded and own[row]]
        self.towns = [towns.row(row, named=True) for row in lone[: CLEAN + 3 * len(KINDS) * EACH]]

    def add(self, kind: str | None, split: str | None = None, pixels: np.ndarray | None = None, **changes: Any) -> Row:
        """A place and its picture; `kind` says what is wrong with it."""
        number = len(self.images)
        town = self.towns[number]
        at = {"lat": town["lat"] + 0.003, "lon": town["lon"] - 0.002}
        place = {"place_id": f"p{number:05d}", "country": town["country"], "lat": town["lat"], "lon": town["lon"],
                 "split": split or SPLITS[number % len(SPLITS)]}  # fmt: skip
        place["country"] = changes.pop("country", place["country"])
        data = jpeg(scene(number) if pixels is None else pixels, 88)
        captured = NOW - timedelta(days=int(self.random.integers(30, 30 + 5 * 365)))
        image = {
            "image_id": f"{number:05d}{kind or 'clean'}", "kind": "panorama" if number % 3 == 0 else "photo",
            "place_id": place["place_id"], **at, "source": "mapillary", "source_id": f"{number}",
            "sequence_id": f"sequence-{number:05d}", "creator": f"creator {number}", "licence": "CC BY-SA 4.0",
            "attribution": "somebody", "captured_at": captured, "fetched_at": NOW, "extension": "jpg",
            "sha256": self.lake.images.put(data, "jpg"), **changes,
        }  # fmt: skip
        self.places.append(place)
        self.images.append(image)
        if kind:
            self.kind_of[image["image_id"]] = kind
        return image | {"split": place["split"], "number": number}

    def fill(self) -> None:
        clean = [self.add(None) for _ in range(CLEAN)]
        scarce = [one for one in clean if one["split"] != "train"]
        panoramas = [one for one in clean if one["kind"] == "panorama"]
        month = datetime(2014, 2, 1, tzinfo=UTC)
        for n in range(EACH):
            town = self.towns[len(self.images)]
            while abs(town["lon"]) > 85 or abs(town["lat"] - town["lon"]) < 3:  # a swap must lead elsewhere, on Earth
                self.towns.pop(len(self.images))
                town = self.towns[len(self.images)]
            self.add("swapped_coordinates", lat=town["lon"] - 0.002, lon=town["lat"] + 0.003)
            source = scene(scarce[n]["number"])
            copy = cv2.resize(source[3:-3, 3:-3], None, fx=0.9, fy=0.9, interpolation=cv2.INTER_AREA)
            self.add("near_duplicate", "train", copy)
            self.add("missing_licence", licence=" " if n % 2 else "")
            self.add("blurred", pixels=cv2.GaussianBlur(scene(100_000 + n), (0, 0), 5))
            self.add("off_plan", lat=-25.0 + 0.0004 * n, lon=133.0)
            self.add("creator_leak", "train", creator=scarce[EACH + n]["creator"].upper())
            self.add("drifted_month", captured_at=month + timedelta(hours=16 * n))
            mirrored = np.ascontiguousarray(scene(panoramas[n]["number"])[:, ::-1])
            self.add("mirrored_duplicate", panoramas[n]["split"], mirrored)
            self.add("wrong_country")
            self.add("wrong_label")
            more = [one for one in clean[200:] if one["split"] == "train"]
            for kind, change, at in (("cropped", cropped, 0), ("turned", turned, EACH), ("framed", framed, 2 * EACH)):
                of = more[at + n]
                self.add(kind, of["split"], change(scene(of["number"]), n))
            of = panoramas[EACH + n]
            self.add("seam_shifted", of["split"], np.roll(scene(of["number"]), 40 + 8 * n, axis=1))
            of = more[3 * EACH + n]
            while abs(self.towns[len(self.images)]["lon"]) > 85:
                self.towns.pop(len(self.images))
            town = self.towns[len(self.images)]
            self.add("swapped_copy", "benchmark", scene(of["number"]), lat=town["lon"] - 0.002, lon=town["lat"] + 0.003)
            self.copied.append(of["image_id"])
            own = self.towns[len(self.images)]["country"]
            other = next(one for one in self.towns[len(self.images) :] if one["country"] != own)
            self.add("other_country", country=other["country"])


def curated(world: World, settings: CurateSettings) -> tuple[pl.DataFrame, dict[str, str]]:
    """The labels, and image id -> reason of the rejects, by the steps of curation."""
    lake = world.lake
    lake.upsert("places", world.places, Commit("places", 1))
    lake.upsert("images", world.images, Commit("images", 1))
    rows: dict[str, list[Row]] = {"fingerprints": [], "quality": []}
    for item in quality.items(open_inputs(quality.STAGE, lake), settings.quality).to_dicts():
        for table, found in quality.work(item, lake).rows.items():
            rows[table] += found
    for table, found in rows.items():
        lake.upsert(table, found, Commit(table, 1))
    lake.upsert("addresses", _kept(address.compute(open_inputs(address.STAGE, lake), settings.address)), Commit("a", 1))
    lake.upsert("duplicates", _kept(duplicates.compute(open_inputs(duplicates.STAGE, lake), settings)), Commit("d", 1))
    verdict = {"model": "judge", "localizability": "localizable", "score": 7.0, "reason": "planted"}
    judged = [{"image_id": one["image_id"], "sha256": one["sha256"], **verdict} for one in world.images]
    lake.upsert("judgements", judged, Commit("j", 1))
    kept, rejects = labels.compute(open_inputs(labels.STAGE, lake), settings)
    assert kept.height + rejects.height == len(world.images), "a row was lost"
    return kept, dict(rejects.select("id", "reason").rows())


def _kept(found: tuple[pl.DataFrame, pl.DataFrame]) -> list[Row]:
    return found[0].drop("id").to_dicts()


def edited(world: World, kept: pl.DataFrame) -> pl.DataFrame:
    """The labels after a careless edit: another country's name, another town's address."""
    kind = kept["image_id"].replace_strict(world.kind_of, default=None, return_dtype=pl.String)
    other = kept.select(pl.all().shift(7).fill_null(strategy="backward"))
    abroad = other["country_code"] != kept["country_code"]
    swap = (kind == "wrong_country") & abroad
    moved = kind == "wrong_label"
    return kept.with_columns(
        country_code=pl.when(swap)
        .then(other["country_code"])
        .when(kind == "wrong_country")
        .then(pl.lit("AQ"))
        .otherwise("country_code"),
        region=pl.when(moved).then(pl.lit("Elsewhere")).otherwise("region"),
        city=pl.when(moved).then(pl.lit("Nowhere")).otherwise("city"),
    )


def main() -> int:
    settings = CurateSettings()
    place_names_table()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Lake(Path(folder) / "lake"))
        world.fill()
        kept, named = curated(world, settings)
        final = edited(world, kept)
        agrees = address_agrees(final)
        for image_id, country, place in zip(
            final["image_id"], agrees["country_of_point"], agrees["address_of_point"], strict=True
        ):
            if not country:
                named.setdefault(image_id, "wrong_country")
            elif not place:
                named.setdefault(image_id, "wrong_label")
        images = world.lake.read("images")
        for image_id, fine in zip(images["image_id"], month_in_line(images), strict=True):
            if not fine:
                named.setdefault(image_id, "drifted_month")
    goals = []
    for kind in KINDS:
        planted = [image_id for image_id, one in world.kind_of.items() if one == kind]
        name = NAMED.get(kind, kind)
        right = sum(named.get(image_id) == name for image_id in planted)
        others = Counter(named[image_id] for image_id in planted if named.get(image_id, name) != name)
        print(
            f"   {kind:<20} {right:>3} of {len(planted)} found and named"
            + (f"; others: {dict(others)}" if others else "")
        )
        goals.append(Goal(f"share of {kind} found and named", right / len(planted), at_least=0.9))
    clean = [one["image_id"] for one in world.images if one["image_id"] not in world.kind_of]
    false = Counter(named[image_id] for image_id in clean if image_id in named)
    share = sum(false.values()) / len(clean)
    print(f"   false alarms: {sum(false.values())} of {len(clean)} clean rows ({share:.2%}) {dict(false)}")
    gone = sum(image_id in named for image_id in world.copied)
    print(f"   {gone} of {len(world.copied)} pictures left because of a copy with exchanged coordinates")
    goals.append(Goal("right pictures displaced by a wrong copy", gone, at_most=0))
    print(f"   {len(world.images)} pictures in {time.perf_counter() - begin:.0f} s")
    return judge([*goals, Goal("share of clean rows with a false alarm", share, at_most=0.01)])


if __name__ == "__main__":
    sys.exit(main())
