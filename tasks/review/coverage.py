"""What the planned places got, kind by kind, and why the others went without."""

import json
from collections import Counter
from dataclasses import dataclass

import polars as pl

KINDS = ("panorama", "photo", "satellite")
_STREET = {"panorama", "photo"}


@dataclass(frozen=True)
class Coverage:
    """How one kind of picture stands."""

    kind: str
    places: int  # planned
    covered: int  # that have at least one
    pictures: int
    why_not: dict[str, int]  # reason -> places without, most frequent first

    @property
    def open(self) -> int:
        """Places without one and without a reason: not collected yet, or failed and to be tried again."""
        return self.places - self.covered - sum(self.why_not.values())


def coverage(places: pl.DataFrame, images: pl.DataFrame, gaps: pl.DataFrame, rejects: pl.DataFrame) -> list[Coverage]:
    """One line for each kind that was looked for."""
    planned = set(places["place_id"])
    rows = []
    for kind in KINDS:
        # A city has one scene for all its places.
        together = _city_mates(places) if kind == "satellite" else {}
        mine = images.filter((pl.col("kind") == kind) & pl.col("place_id").is_in(places["place_id"].implode()))
        covered = _spread(set(mine["place_id"]), together)
        reasons = _reasons(kind, gaps, rejects)
        why = {mate: reason for place, reason in reasons.items() for mate in together.get(place, {place})}
        missing = Counter(why[place] for place in sorted(planned - covered) if place in why)
        if covered or missing:
            ordered = dict(sorted(missing.items(), key=lambda pair: (-pair[1], pair[0])))
            rows.append(Coverage(kind, len(planned), len(covered), mine.height, ordered))
    return rows


def _city_mates(places: pl.DataFrame) -> dict[str, set[str]]:
    """Place -> all places of its city, where places were drawn for cities."""
    if "city_id" not in places.columns:
        return {}
    groups = places.filter(pl.col("city_id").is_not_null()).group_by("city_id").agg("place_id")["place_id"].to_list()
    return {place: set(group) for group in groups for place in group}


def _spread(places: set[str], together: dict[str, set[str]]) -> set[str]:
    return {mate for place in places for mate in together.get(place, {place})}


def _reasons(kind: str, gaps: pl.DataFrame, rejects: pl.DataFrame) -> dict[str, str]:
    """Place -> why it has none of the kind."""
    stage = "collect" if kind in _STREET else f"collect.{kind}"
    refused = rejects.filter(pl.col("stage") == stage)
    reasons = {
        _place_of(item, evidence): reason
        for item, reason, evidence in refused.select("item_id", "reason", "evidence_json").iter_rows()
    }
    lacking = gaps.filter((pl.col("kind") == kind) & (pl.col("got") == 0))
    return reasons | dict(lacking.select("place_id", "reason").iter_rows())


def _place_of(item_id: str, evidence_json: str | None) -> str:
    """The place of a reject: an item is a place, or says in its evidence which one it is for."""
    try:
        named = json.loads(evidence_json or "{}").get("place_id")
    except (ValueError, AttributeError):
        named = None
    return named if isinstance(named, str) else item_id


def coverage_lines(rows: list[Coverage]) -> list[str]:
    """The same as lines of text for a terminal."""
    lines = []
    for row in rows:
        why = [f"{count} {reason}" for reason, count in row.why_not.items()]
        why += [f"{row.open} not tried yet, or failed and to be tried again"] if row.open else []
        lines.append(
            f"{_PLURAL[row.kind]:<10} {row.pictures:>5,}, for {row.covered:,} of {row.places:,} places"
            + (f"; without: {', '.join(why)}" if why else "")
        )
    return lines


_PLURAL = {"panorama": "panoramas", "photo": "photos", "satellite": "scenes"}
