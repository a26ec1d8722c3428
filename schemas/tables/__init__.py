"""The Delta tables of the lake: columns, keys and what each column means, one module for each part.

Every module of this package that has `TABLES` adds its contracts, so a new part needs one new file here.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from schemas.tables.base import BOOL, FLOAT, INT, JSON, STRING, SYSTEM_COLUMNS, TIME, Expectation, Table

__all__ = ["BOOL", "FLOAT", "INT", "JSON", "STRING", "SYSTEM_COLUMNS", "TABLES", "TIME", "Expectation", "Table"]

# In the order of the data, for readers; parts that are not named here follow, and `run` comes last.
_ORDER = ("plan", "collect", "curate", "review", "withdraw", "synthesize", "difficulty", "train", "evaluate")


def _modules() -> list[str]:
    names = {module.name for module in pkgutil.iter_modules(__path__)} - {"base", "run"}
    return [*(name for name in _ORDER if name in names), *sorted(names - set(_ORDER)), "run"]


def _contracts() -> Iterator[tuple[str, Table]]:
    owner: dict[str, str] = {}
    for name in _modules():
        for table in getattr(importlib.import_module(f"{__name__}.{name}"), "TABLES", ()):
            if table.name in owner:
                raise ValueError(f"table '{table.name}' is declared in {owner[table.name]}.py and again in {name}.py")
            owner[table.name] = name
            yield table.name, table


TABLES: dict[str, Table] = dict(_contracts())
