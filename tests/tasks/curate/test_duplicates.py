"""Duplicates and leaks: one of each stays, and nothing is shared between splits."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tasks.curate.duplicates import SPLIT_ORDER, with_overlaps

SCHEMA = dict.fromkeys(["image_id", "sha256", "source", "sequence_id", "split"], pl.String)


def overlaps(rows: list[tuple[str, str, str | None, str]]) -> dict[str, tuple[str | None, str | None]]:
    frame = pl.DataFrame(
        [{"image_id": i, "sha256": h, "source": "s", "sequence_id": q, "split": p} for i, h, q, p in rows], SCHEMA
    )
    return {row["image_id"]: (row["duplicate_of"], row["leaks_into"]) for row in with_overlaps(frame).to_dicts()}


def test_the_smallest_id_of_equal_bytes_stays() -> None:
    found = overlaps([("b", "x", None, "train"), ("a", "x", None, "train"), ("c", "y", None, "train")])
    assert found == {"a": (None, None), "b": ("a", None), "c": (None, None)}


def test_a_sequence_serves_the_later_split() -> None:
    found = overlaps([("a", "x", "q", "train"), ("b", "y", "q", "benchmark"), ("c", "z", "q", "validation")])
    assert found == {"a": (None, "benchmark"), "b": (None, None), "c": (None, "benchmark")}


def test_a_picture_shared_by_two_places_survives_once() -> None:
    found = overlaps([("a", "x", "q", "train"), ("b", "x", "q", "benchmark")])
    assert found["b"] == (None, None)
    assert found["a"] == ("b", "benchmark")


rows = st.lists(
    st.tuples(
        st.sampled_from("uvwxyz"), st.one_of(st.none(), st.sampled_from("qrs")), st.sampled_from(sorted(SPLIT_ORDER))
    ),
    max_size=30,
)


@given(rows)
def test_nothing_is_shared_between_splits_afterwards(drawn: list[tuple[str, str | None, str]]) -> None:
    given_rows = [(f"{n:03d}", sha, sequence, split) for n, (sha, sequence, split) in enumerate(drawn)]
    found = overlaps(given_rows)
    kept = [row for row in given_rows if found[row[0]] == (None, None)]
    assert len({row[1] for row in kept}) == len(kept)
    for sequence in "qrs":
        assert len({row[3] for row in kept if row[2] == sequence}) <= 1
    # A duplicate's original is there, and is no duplicate itself.
    for duplicate_of, _ in found.values():
        assert duplicate_of is None or found[duplicate_of][0] is None
