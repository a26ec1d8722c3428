"""One table, one writer: which stage may write which table."""

from collections.abc import Iterable

from schemas.errors import GeofixError
from schemas.tables import TABLES
from tasks.runtime.stage import ColumnStage, Stage


def refuse_second_writers(stages: Iterable[Stage | ColumnStage]) -> None:
    """Raise if two stages declare one table, or have one name; tables whose contract says `shared` are excepted.

    A row holds the columns of one stage: a second writer would replace the first one's row and be replaced in turn.
    """
    names: set[str] = set()
    writers: dict[str, str] = {}
    for stage in stages:
        if stage.name in names:
            raise GeofixError(f"two stages are named '{stage.name}'; results are kept by the stage's name")
        names.add(stage.name)
        for table in stage.writes:
            if table not in TABLES:
                raise GeofixError(f"stage {stage.name} writes '{table}', which has no contract in schemas/tables/")
            first = writers.setdefault(table, stage.name)
            if first != stage.name and not TABLES[table].shared:
                raise GeofixError(
                    f"stages {first} and {stage.name} both write table '{table}': give each a table of its own and "
                    f"join them in a third stage, or declare the table shared=True in schemas/tables/"
                )
