"""The border lookup of the ground floor, under the name the plan knows it by."""

from tasks.boundaries import (
    COLUMNS,
    Index,
    admin1_of,
    build_index,
    country_codes,
    country_number,
    country_of,
    country_of_label,
    index,
    segments,
    wrap,
)

__all__ = [
    "COLUMNS",
    "Index",
    "admin1_of",
    "build_index",
    "country_codes",
    "country_number",
    "country_of",
    "country_of_label",
    "index",
    "segments",
    "wrap",
]
