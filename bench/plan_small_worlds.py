"""Ten thousand random small worlds: every place in its country, spacing and buffer kept, none lost.

`python -m bench.plan_small_worlds [WORLDS]` prints a line every thousand worlds and stops at the first breach.
"""

import sys
import time

import numpy as np

from schemas.settings.plan import PlanSettings, SplitShares
from tasks.atlas import countries
from tasks.boundaries import country_of
from tasks.geo import distance_km
from tasks.plan.stage import plan_places


def random_world(random: np.random.Generator, codes: list[str]) -> PlanSettings:
    held_out = float(random.uniform(0, 0.4))
    return PlanSettings(
        places=int(random.integers(1, 60)),
        seed=int(random.integers(0, 2**60)),
        countries=tuple(random.choice(codes, int(random.integers(1, 6)), replace=False).tolist()),
        within_cell="gazetteer" if random.random() < 0.5 else "uniform",
        spacing_km=float(random.choice([0, 0.5, 1, 3, 10])),
        buffer_km=float(random.choice([0, 2, 10, 30])),
        jitter_km=float(random.choice([0, 1, 5])),
        split=SplitShares(train=1 - 2 * held_out, validation=held_out, benchmark=held_out),
    )


def breaches(settings: PlanSettings) -> list[str]:
    """What is wrong with the plan of these settings."""
    places, refused = plan_places(settings)
    found = []
    if places.height + refused.height != settings.places:
        found.append(f"{places.height} placed + {refused.height} refused is not {settings.places}")
    if not places.height:
        return found
    lat, lon = places["lat"].to_numpy(), places["lon"].to_numpy()
    if (country_of(lat, lon) != places["country"].to_numpy()).any():
        found.append("a place outside its country")
    apart = distance_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    np.fill_diagonal(apart, np.inf)
    split = places["split"].to_numpy()
    other = split[:, None] != split[None, :]
    if apart.min() < settings.spacing_km:
        found.append(f"two places {apart.min()} km apart")
    if other.any() and apart[other].min() < settings.buffer_km:
        found.append(f"two splits {apart[other].min()} km apart")
    return found


def main(worlds: int = 10_000) -> int:
    random = np.random.default_rng(2026)
    codes = [code for code in countries()["iso2"].to_list() if code != "AQ"]
    begin = time.perf_counter()
    for done in range(1, worlds + 1):
        settings = random_world(random, codes)
        found = breaches(settings)
        if found:
            print(f"world {done}: {'; '.join(found)}\n{settings!r}")
            return 1
        if done % 1000 == 0:
            print(f"  {done:,} worlds hold, {time.perf_counter() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
