"""The embedded geocoder: look-ups a second, a generation of GeoAgent's rewards, and agreement with a real Nominatim.

`--nominatim URL` asks a server for the same towns (one request a second is the public server's rule: use your own) and
says how many of both answers lie within 25 km of each other, and of the town.
"""

import argparse
import asyncio
import random
import sys
import time

import polars as pl

from bench.goals import Goal, judge
from schemas.settings.services import ServicesSettings
from tasks.geo.atlas import gazetteer
from tasks.geo.distance import distance_km
from tasks.geo.geocode import find_places
from tasks.geo.labels import labels_of
from tasks.services import connect
from tasks.services.geocoder import open_geocoder

ROLLOUTS = 2_048  # of a GeoAgent generation
NEAR_KM = 25.0


def labels(count: int) -> list[dict[str, object]]:
    """Labels of pictures some kilometres beside towns of the whole Earth."""
    chance = random.Random(1)
    towns = gazetteer().sample(count, seed=1)
    lat = [min(max(one + chance.gauss(0, 0.03), -89), 89) for one in towns["lat"]]
    lon = [one + chance.gauss(0, 0.03) for one in towns["lon"]]
    names = labels_of(lat, lon).select("country", "region", "city").with_columns(lat=pl.Series(lat), lon=pl.Series(lon))
    return names.drop_nulls(["country", "city"]).to_dicts()


def line(row: dict[str, object]) -> str:
    return ", ".join(str(row[name]) for name in ("city", "region", "country") if row[name])


async def agreement(url: str, rows: list[dict[str, object]]) -> tuple[int, int, int]:
    """How many towns a server knows, and of those how many answers agree with ours and lie near the town."""
    services = ServicesSettings.model_validate({"geocoder": {"base_url": url, "requests_per_minute": None}})
    client = open_geocoder(connect(services, {}).geocoder)
    known = same = near = 0
    for row in rows:
        theirs = await client.search(line(row), limit=1)
        ours = find_places(line(row), 1)
        if theirs and ours:
            known += 1
            point = theirs[0].lat, theirs[0].lon
            same += distance_km(*point, ours[0].lat, ours[0].lon) <= NEAR_KM
            near += distance_km(*point, float(str(row["lat"])), float(str(row["lon"]))) <= NEAR_KM
    await client.close()
    return known, same, near


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nominatim", metavar="URL", help="a server to compare with")
    parser.add_argument("--towns", type=int, default=500, help="to ask it for")
    given = parser.parse_args()
    rows = labels(10_000)
    began = time.monotonic()
    answers = [find_places(line(row), 1) for row in rows]
    first_s = time.monotonic() - began
    began = time.monotonic()
    for row in rows:
        find_places(line(row), 1)
    rate = len(rows) / (time.monotonic() - began)
    began = time.monotonic()
    for row in rows[:ROLLOUTS]:
        find_places(line(row), 1)
    generation_s = time.monotonic() - began
    away = [
        distance_km(found[0].lat, found[0].lon, float(str(row["lat"])), float(str(row["lon"])))
        for row, found in zip(rows, answers, strict=True)
        if found
    ]
    print(f"   {len(rows):,} labels all over the Earth: {first_s:.1f} s with every country's names read for the first "
          f"time, then {rate:,.0f} look-ups a second; {ROLLOUTS:,} rollouts {generation_s:.3f} s, at one request "
          f"a second {ROLLOUTS / 60:.0f} min")  # fmt: skip
    print(f"   found {len(away) / len(rows):.2%}; within {NEAR_KM:.0f} km of the picture "
          f"{sum(km <= NEAR_KM for km in away) / len(rows):.2%}")  # fmt: skip
    if given.nominatim:
        known, same, near = asyncio.run(agreement(given.nominatim, rows[: given.towns]))
        print(f"   of {given.towns} labels that server knows {known}; the same place {same}, near the picture {near}")
    return judge(
        [
            Goal("seconds of a generation", generation_s, at_most=1.0),
            Goal("share of labels that are found", len(away) / len(rows), at_least=1.0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
