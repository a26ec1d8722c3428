"""A table whose pictures lie elsewhere is refused before anything is written; one that lacks some of them is not."""

from pathlib import Path
from typing import Any

import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.ingest import Survey, TableRefused, check_dataset, table
from tasks.ingest import survey_table as surveyed
from tasks.ingest.files import PictureFolder

SETTINGS = IngestSettings(keep_lat_lon=True)


def survey_table(path: Path, settings: IngestSettings) -> Survey:
    """The table, checked as a new dataset."""
    survey = surveyed(path, settings)
    check_dataset(None, survey, "set", settings, PlanSettings())
    return survey


def test_pictures_that_lie_elsewhere(darkroom: Any, tmp_path: Path) -> None:
    darkroom.save("a.jpg", b"x")
    path = darkroom.plain([{} for _ in range(5)])
    (tmp_path / "empty").mkdir()
    first = r"\(first: row 2, missing_file: path 'a.jpg' .*\)"
    said = rf"none of its 5 rows can be taken: 5 missing_file {first}; .* the right folder with --images"
    with pytest.raises(TableRefused, match=said):
        survey_table(path, IngestSettings(keep_lat_lon=True, images=str(tmp_path / "empty")))
    assert survey_table(path, IngestSettings(keep_lat_lon=True, images=str(tmp_path / "empty"), replace=True)).rows == 5
    away = darkroom.plain([{"path": f"/srv/photos/{n}.jpg"} for n in range(5)])
    with pytest.raises(TableRefused, match=r"first: row 2, path_escapes: path '/srv/photos/0.jpg' leads outside"):
        survey_table(away, SETTINGS)


def test_addresses_in_a_column_of_paths(darkroom: Any) -> None:
    path = darkroom.plain([{"path": f"https://host/{n}.jpg?sig=SECRET"} for n in range(5)])
    with pytest.raises(TableRefused, match=r"path 'https://host/0.jpg' is an address, not a path: call the column url"):
        survey_table(path, SETTINGS)


@pytest.mark.parametrize(
    "rows",
    [
        [{"path": "no.jpg"}, {"path": "no.jpg"}, {"path": "no.jpg"}, {}],  # one is there
        [{"path": "no.jpg"}, {"path": "no.jpg"}],  # too few to be sure
        [{"path": "", "url": "https://host/a.jpg"} for _ in range(4)],
    ],
)
def test_tables_that_are_taken(darkroom: Any, rows: list[dict[str, Any]]) -> None:
    darkroom.save("a.jpg", b"x")
    assert survey_table(darkroom.plain(rows), SETTINGS).rows == len(rows)


def test_the_first_rows_with_a_picture_end_the_search(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    darkroom.save("a.jpg", b"x")
    asked: list[str] = []
    find = PictureFolder.find
    monkeypatch.setattr(PictureFolder, "find", lambda self, path: asked.append(path) or find(self, path))
    monkeypatch.setattr(table, "BATCH", 2)
    survey_table(darkroom.plain([{"path": "no.jpg"}, *({} for _ in range(50))]), SETTINGS)
    assert asked == ["no.jpg", "a.jpg"]
