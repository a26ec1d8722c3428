"""In which country a point lies: every arc-minute of latitude as a row of changes from west to east.

Stored are, per row, the longitudes (in 1/65,536 of a turn) at which the country changes, and the country east of each:
exact along the middle of the row, so a point is right unless a border passes within about a kilometre of it.
"""

import gzip
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "data" / "countries.gz"
ROWS, COLUMNS = 10_800, 65_536


@dataclass(frozen=True)
class CountryMap:
    """Land by country."""

    codes: tuple[str, ...]
    starts: np.ndarray  # the changes of row r are column[starts[r]:starts[r + 1]]
    column: np.ndarray
    country: np.ndarray  # number of the code plus one; 0 is the sea

    def at(self, lat: float, lon: float) -> str | None:
        """ISO 3166 alpha-2 code at a point, or None on the sea."""
        row = min(ROWS - 1, int((lat + 90.0) * ROWS / 180.0))
        step = min(COLUMNS - 1, int(((lon + 180.0) % 360.0) * COLUMNS / 360.0))
        first, last = int(self.starts[row]), int(self.starts[row + 1])
        place = first + int(np.searchsorted(self.column[first:last], step, side="right")) - 1
        number = int(self.country[place]) if place >= first else 0
        return self.codes[number - 1] if number else None

    def land(self, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
        """Numbers of the countries at points (0 on the sea), of whatever shape both arrays have in common."""
        lat, lon = np.broadcast_arrays(lat, lon)
        row = np.clip((lat + 90.0) * ROWS / 180.0, 0, ROWS - 1).astype(np.int64)
        step = np.clip(((lon + 180.0) % 360.0) * COLUMNS / 360.0, 0, COLUMNS - 1).astype(np.int64)
        place = np.searchsorted(self.keys, row * COLUMNS + step, side="right") - 1
        same_row = (place >= 0) & (place >= self.starts[row])
        return np.where(same_row, self.country[place], 0)

    @cached_property
    def keys(self) -> np.ndarray:
        """Every change as one number, ascending: row times columns plus column."""
        counts = self.starts[1:].astype(np.int64) - self.starts[:-1]
        return np.repeat(np.arange(ROWS), counts) * COLUMNS + self.column.astype(np.int64)


@lru_cache(maxsize=1)
def country_map() -> CountryMap:
    """The map, read once per process: a tenth of a second and a few megabytes, so only when first requested."""
    raw = gzip.decompress(FILE.read_bytes())
    end = raw.index(b"\n") + 1
    head = json.loads(raw[:end])
    count = head["changes"]
    starts = np.frombuffer(raw, "<u4", ROWS + 1, end)
    end += starts.nbytes
    # Written as steps modulo 65,536: adding them up in the same width gives the columns back.
    column = np.cumsum(np.frombuffer(raw, "<u2", count, end), dtype=np.uint16)
    country = np.frombuffer(raw, "u1", count, end + 2 * count)
    return CountryMap(tuple(head["codes"]), starts, column, country)
