"""Tables of the offline world; README.md says where each comes from."""

import csv
from pathlib import Path


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file in this folder."""
    with (Path(__file__).parent / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
