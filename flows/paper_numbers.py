"""A paper's numbers beside ours: what `geofix run --dry-run` prints before anything starts."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.config import Config
from schemas.paper_tables import Paper, PaperNumber


@dataclass(frozen=True)
class NumberPair:
    """What the paper prints and what would be run."""

    of: str
    name: str
    printed: Any
    ours: Any
    where: str  # setting or constant
    differs: str | None  # why, where it is known

    @property
    def is_same(self) -> bool:
        return bool(self.printed == self.ours)


def compared(paper: Paper, config: Config) -> list[NumberPair]:
    """Every number of the paper's settings and sizes beside ours."""
    return [
        NumberPair(
            number.of,
            number.name,
            number.printed,
            _ours(number, config),
            number.setting or number.constant or "",
            number.differs,
        )
        for number in paper.numbers
    ]


def _ours(number: PaperNumber, config: Config) -> Any:
    if number.fixed is not None:
        return number.fixed
    if number.setting is not None:
        value = _part_of(config, number.setting)
    else:
        module, _, name = str(number.constant).partition(" ")
        value = _part_of(importlib.import_module(module), name)
    if isinstance(value, tuple):
        return len(value) if isinstance(number.printed, int) else list(value)
    return value


def _part_of(value: Any, dotted: str) -> Any:
    """The part at a dotted path of fields, keys and positions; None where there is none."""
    for name in dotted.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, tuple | list):
            value = value[int(name)]
        else:
            value = getattr(value, name, None)
    return value
