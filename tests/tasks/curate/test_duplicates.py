"""Duplicates and leaks: one of each stays, and nothing is shared between splits."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InputError
from schemas.settings.curate import CurateSettings, DuplicatesSettings
from tasks.curate.external import check, read_external, with_digests
from tasks.curate.leaks import SPLIT_ORDER, Exclusion, exclusions
from tasks.geo.distance import distance_km
from tasks.imaging.alike import look_alikes

SCHEMA: dict[str, Any] = {
    **dict.fromkeys(["image_id", "place_id", "sha256", "source", "sequence_id", "creator", "kind", "split"], pl.String),
    **dict.fromkeys(["phash", "phash_mirrored"], pl.String),
    "captured_at": pl.Datetime("us", "UTC"),
    **dict.fromkeys(["lat", "lon"], pl.Float64),
    "embedding": pl.List(pl.Float32),
    **dict.fromkeys(["patches", "patches_mirrored"], pl.List(pl.String)),
    "patch_places": pl.List(pl.Float32),
    "thumbnail": pl.List(pl.Int16),
    "aspect": pl.Float64,
}
FAR = itertools.count()


def picture(image_id: str, split: str = "train", **given_values: Any) -> dict[str, Any]:
    """A picture that shares nothing with any other, unless it is told to."""
    number = next(FAR)
    own = np.random.default_rng(number)
    lone = own.normal(size=176)
    return {
        "image_id": image_id,
        "place_id": None,
        "split": split,
        "sha256": f"{number:064x}",
        "source": "mapillary",
        "sequence_id": None,
        "creator": None,
        "kind": "photo",
        "captured_at": None,
        "lat": number % 160 - 80.0,
        "lon": number // 160 % 340 - 170.0,
        "phash": f"{int(own.integers(0, 2**64, dtype=np.uint64)):016x}",
        "phash_mirrored": f"{int(own.integers(0, 2**64, dtype=np.uint64)):016x}",
        "embedding": (lone / np.linalg.norm(lone)).tolist(),
        **dict.fromkeys(["patches", "patches_mirrored", "patch_places", "thumbnail", "aspect"]),
        **given_values,
    }


def found(*rows: dict[str, Any], **changes: Any) -> dict[str, Exclusion]:
    chosen, frame = DuplicatesSettings(**changes), pl.DataFrame(rows, schema=SCHEMA)
    return exclusions(frame, chosen, look_alikes(frame, chosen))


def test_the_smallest_id_of_equal_bytes_stays() -> None:
    out = found(picture("b", sha256="x"), picture("a", sha256="x"), picture("c"))
    assert out.keys() == {"b"}
    assert (out["b"].reason, out["b"].duplicate_of, out["b"].leaks_into) == ("exact_duplicate", "a", None)


def test_the_same_place_keeps_a_shared_picture_in_every_lake() -> None:
    """Ids are keyed by the lake: two lakes that collect one plan must not disagree on whose picture it is."""
    for ids in (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")):
        shared = [picture(one, sha256="x", place_id=place) for one, place in zip(ids, ("p3", "p1", "p2"), strict=True)]
        out = found(*shared)
        assert ids[1] not in out and len(out) == 2


def test_near_duplicates_need_the_hash_and_the_embedding() -> None:
    first = picture("a", phash="00000000000000ff")
    alike = picture("b", phash="00000000000000fe", embedding=first["embedding"])
    other = picture("c", phash="00000000000000fd")
    far = picture("d", phash="0000000000ffffff", embedding=first["embedding"])
    out = found(first, alike, other, far)
    assert out.keys() == {"b"}
    assert out["b"].evidence == {"of": "a", "split": "train", "other_split": "train", "bits": 1, "cosine": 1.0}
    assert found(first, alike, hash_distance=0) == {}


def test_a_mirrored_copy_is_found() -> None:
    from tasks.imaging.hashes import mirrored_embedding

    first = picture("a")
    turned = mirrored_embedding(np.array([first["embedding"]], np.float32))[0]
    copy = picture("b", phash=first["phash_mirrored"], phash_mirrored=first["phash"], embedding=turned.tolist())
    out = found(first, copy)
    assert (out["b"].reason, out["b"].duplicate_of) == ("mirrored_duplicate", "a")
    assert found(first, copy, mirrored=False) == {}


def test_a_sequence_serves_the_later_split_through_whatever_source() -> None:
    rows = [
        picture("a", "train", sequence_id="drive-of-monday", source="osv5m"),
        picture("b", "benchmark", sequence_id="drive-of-monday", source="mapillary"),
        picture("c", "validation", sequence_id="drive-of-monday"),
        picture("d", "train", sequence_id="1", source="mine"),  # numbers of a table's own
        picture("e", "benchmark", sequence_id="1", source="yours"),
    ]
    out = found(*rows)
    assert {name: (one.reason, one.leaks_into) for name, one in out.items()} == {
        "a": ("sequence_leak", "benchmark"),
        "c": ("sequence_leak", "benchmark"),
    }
    assert found(*rows, by_sequence=False) == {}


def test_a_creator_serves_one_split_but_an_agency_serves_all() -> None:
    rows = [
        picture("a", "train", creator="Ada"),
        picture("b", "validation", creator="ada "),
        picture("c", "train", creator="ESA", kind="satellite"),
        picture("d", "benchmark", creator="ESA", kind="satellite"),
    ]
    out = found(*rows)
    assert {name: one.reason for name, one in out.items()} == {"a": "creator_leak"}
    assert found(*rows, by_creator=False) == {}


def test_a_creator_is_one_whatever_capitals_and_spaces_are_written() -> None:
    names = ["Ada Lovelace", "ada  lovelace", "ADA\u00a0LOVELACE ", "AdaLovelace", "Ａda Lovelace"]
    rows = [picture(f"t{n}", "train", creator=name) for n, name in enumerate(names)]
    out = found(picture("b", "benchmark", creator="ada lovelace"), *rows, picture("c", "train", creator="Ada L."))
    assert {name: one.reason for name, one in out.items()} == {f"t{n}": "creator_leak" for n in range(len(names))}


def test_the_position_that_more_copies_share_decides_which_copy_stays() -> None:
    same, paris = {"sha256": "x"}, {"lat": 48.8566, "lon": 2.3522}
    wrong = picture("a", "benchmark", **same, lat=2.3522, lon=48.8566)
    right = [picture("b", "train", **same, **paris), picture("c", "train", **same, **paris)]
    out = found(wrong, *right)
    assert {name: (one.reason, one.duplicate_of) for name, one in out.items()} == {
        "a": ("exact_duplicate", "b"), "c": ("exact_duplicate", "b"),
    }  # fmt: skip
    assert out["a"].evidence["positions_apart_km"] > 5000
    planned = picture("z", "train", **same, **paris, place_id="p1")  # of two, the one that answers a place
    assert found(wrong, planned).keys() == {"a"}
    assert found(wrong, picture("z", "train", **same, **paris)).keys() == {"z"}  # no evidence: the scarcer split


def test_a_burst_without_a_sequence_is_one_place() -> None:
    """Five along nine metres within half a minute, and what is another time, kind, sequence or place."""
    start = datetime(2024, 5, 1, 12, tzinfo=UTC)

    def near(name: str, metres: float, seconds: float | None, **more: Any) -> dict[str, Any]:
        at = None if seconds is None else start + timedelta(seconds=seconds)
        return picture(name, sha256=name * 64, lat=50.0 + metres / 111_195, lon=10.0, captured_at=at, **more)

    rows = [near(name, 2.25 * step, 5 * step) for step, name in enumerate("abcde")]
    rows += [near("f", 5, 3600), near("g", 5, 10, kind="panorama"), near("h", 5, None), near("i", 40, 10)]
    rows.append(near("j", 5, 10, sequence_id="monday-drive"))
    rows += [near(name, 5, 10, kind="satellite") for name in "kl"]
    out = found(*rows)
    assert {name: why.reason for name, why in out.items()} == dict.fromkeys("bcde", "spatial_duplicate")
    assert {why.duplicate_of for why in out.values()} == {"a"} and out["e"].evidence["m"] == 9.0
    assert found(*rows, burst_m=0) == {}


def test_training_keeps_its_distance_and_one_drive_its_spacing() -> None:
    rows = [
        picture("a", "train", lat=10.0, lon=10.0),
        picture("b", "validation", lat=10.005, lon=10.0),
        picture("c", "train", lat=50.0, lon=10.0, sequence_id="monday-drive"),
        picture("d", "train", lat=50.00001, lon=10.0, sequence_id="monday-drive"),
        picture("e", "train", lat=50.00001, lon=10.0),
    ]
    out = found(*rows)
    assert {name: one.reason for name, one in out.items()} == {"a": "radius_leak", "d": "spatial_duplicate"}
    assert out["a"].evidence["km"] == pytest.approx(0.556, abs=0.001)
    assert found(*rows, leak_km=0, spatial_m=0) == {}


def test_other_evaluation_sets_are_kept_out_of_training(tmp_path: Path) -> None:
    first, second, third = picture("a", lat=1.0, lon=1.0), picture("b"), picture("c")
    points = tmp_path / "im2gps3k.csv"
    points.write_text("IMG_ID,LAT,LON\nx.jpg,1.001,1.0\n")
    marks = tmp_path / "osv5m.parquet"
    pl.DataFrame({"sha256": [second["sha256"], None], "phash": [None, third["phash"]]}).write_parquet(marks)
    names = (str(points), str(marks))
    frame = pl.DataFrame([first, second, third, picture("d"), {**first, "image_id": "e", "split": "benchmark"}], SCHEMA)
    out = exclusions(frame, DuplicatesSettings(leak_km=1), external=read_external(names))
    assert {name: (one.reason, one.leaks_into) for name, one in out.items()} == {
        "a": ("exact_duplicate", "benchmark"),
        "b": ("external_leak", "osv5m.parquet"),
        "c": ("external_leak", "osv5m.parquet"),
    }
    alone = exclusions(frame.head(4), DuplicatesSettings(leak_km=1), external=read_external(names))
    assert alone["a"].leaks_into == "im2gps3k.csv" and alone["a"].evidence["km"] == pytest.approx(0.111, abs=0.001)
    before = with_digests(DuplicatesSettings(external=names))
    points.write_text("IMG_ID,LAT,LON\nx.jpg,2.001,1.0\n")
    assert with_digests(DuplicatesSettings(external=names)) != before


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gone.csv", None, "no file"),
        ("a.csv", "x,y\n1,2\n", "it needs lat and lon, sha256 or phash"),
        ("b.csv", "lat,lon\n91,2\n", "1 rows whose lat, lon is not a point on Earth"),
        ("c.csv", "lat,lon\nx,2\n", "1 rows whose lat, lon is not a point on Earth"),
        ("d.csv", "phash\nzz\n", "a phash that is not 16 hex digits"),
    ],
)
def test_a_bad_external_file_is_refused_in_one_line(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says):
        check(CurateSettings(duplicates=DuplicatesSettings(external=(str(tmp_path / name),))))


worlds = st.lists(
    st.tuples(
        st.sampled_from("uvwxyz"),  # bytes
        st.one_of(st.none(), st.sampled_from(["sequence-q", "sequence-r"])),
        st.one_of(st.none(), st.sampled_from(["ada", "bob"])),
        st.integers(0, 12),  # a street of points 300 m apart
        st.integers(0, 3),  # a hash, and its neighbours
        st.sampled_from(sorted(SPLIT_ORDER)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_random_worlds_share_nothing_between_splits_afterwards(drawn: list[Any]) -> None:
    same = picture("")["embedding"]
    rows = [
        picture(f"{n:03d}", split, sha256=sha, sequence_id=sequence, creator=creator, lat=5 + 0.0027 * at, lon=5.0,
                phash=f"{(0xABCD << 20 * bits % 44) ^ n % 3:016x}", embedding=same)
        for n, (sha, sequence, creator, at, bits, split) in enumerate(drawn)
    ]  # fmt: skip
    out = found(*rows, mirrored=False)
    kept = [row for row in rows if row["image_id"] not in out]
    assert len(kept) + len(out) == len(rows)
    assert len({row["sha256"] for row in kept}) == len(kept)
    for one, two in itertools.combinations(kept, 2):
        assert (int(one["phash"], 16) ^ int(two["phash"], 16)).bit_count() > 6
        if one["split"] != two["split"]:
            assert distance_km(one["lat"], one["lon"], two["lat"], two["lon"]) > 1
            assert one["sequence_id"] is None or one["sequence_id"] != two["sequence_id"]
            assert one["creator"] is None or one["creator"] != two["creator"]
    staying = {row["image_id"] for row in kept}
    assert all(why.evidence["of"] in staying for why in out.values())  # the evidence of a removal is there
