"""A stray quote costs its own line: every other row of the table is read, and every line is accounted for."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.ingest import IngestSettings
from tasks.ingest.refusal import Refusal, TableRefused
from tasks.ingest.survey import survey_rows
from tasks.ingest.table import LONGEST_LINE, open_table

HEADER = "id,path,lat,lon,licence,creator"
SETTINGS = IngestSettings(keep_lat_lon=True)


@pytest.fixture
def found(rows_of: Any) -> Callable[[Path], dict[int, str | None]]:
    """The id of every row that was read, the reason for every other one, by line."""

    def read(path: Path) -> dict[int, str | None]:
        rows = rows_of(survey_rows(path, SETTINGS), "id")
        assert len(dict(rows)) == len(rows)
        return {number: f"! {one.reason}" if isinstance(one, Refusal) else one[0] for number, one in rows}

    return read


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("broken", "closing"),
    [
        ('x,"good.jpg,48,2,CC0,Ana', 'y,"good.jpg",48,2,CC0,Ana'),  # the next quote opens a field
        (
            'x,"good.jpg,48,2,CC0,Ana',
            'y,good.jpg",48,2,CC0,Ana',
        ),  # the next quote closes it: the number of fields is right
        ('x,good.jpg,48,2,CC0,"Ana', 'y,good.jpg,48,2,CC0,Ana"'),  # in a column that may hold line breaks
        ('x,good.jpg,48,2,"CC0,Ana', 'y,good.jpg,48,2,CC0",Ana'),
        ('"x,good.jpg,48,2,CC0,Ana', "y,good.jpg,48,2,CC0,Ana"),  # never closed
    ],
)
def test_a_stray_quote_costs_its_own_line(found: Any, tmp_path: Path, broken: str, closing: str) -> None:
    rows = [f"a{n},good.jpg,48.{n},2.{n},CC0,Ana" for n in range(8)]
    read = found(write(tmp_path / "t.csv", [rows[0], broken, *rows[1:], closing, "z,good.jpg,48,2,CC0,Ana"]))
    assert list(read) == list(range(2, 13))
    assert read[3] == "! unreadable_row"
    assert list(read.values()) == ["a0", "! unreadable_row", *(f"a{n}" for n in range(1, 8)), "y", "z"]


def test_texts_over_several_lines_are_one_row(found: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        f'{HEADER},title\na,a.jpg,48,2,CC0,Ana,"one\ntwo, three\n\n""four"""\nb,b.jpg,48,2,CC0,"Ana\nMeier",x\n'
        "c,c.jpg,48,2,CC0,Ana,y\n"
    )
    assert found(path) == {2: "a", 6: "b", 8: "c"}


def test_a_header_over_several_lines(found: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'{HEADER},"my\nnote"\na,a.jpg,48,2,CC0,Ana,x\n')
    assert found(path) == {3: "a"} and open_table(path).columns[-1] == "my note"
    path.write_text(f'{HEADER},"note\na,a.jpg,48,2,CC0,Ana,x\nb,b.jpg,48,2,CC0,Ana,x"\nc,c.jpg,48,2,CC0,Ana,x\n')
    with pytest.raises(TableRefused, match="column names, and is unreadable: a quote that is not closed"):
        found(path)


def test_a_line_without_an_end_is_no_table(found: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["a,a.jpg,48,2,CC0,Ana", "b" * (2 * LONGEST_LINE)])
    with pytest.raises(TableRefused, match="line 3 is longer than"):
        found(path)


@settings(max_examples=150)
@given(rows=st.integers(4, 30), quotes=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_wherever_quotes_are_strewn_every_line_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, rows: int, quotes: int, seed: int
) -> None:
    rng = random.Random(seed)
    lines = [f"p{n},good.jpg,48.{n},2.{n},CC0,Ana" for n in range(rows)]
    hit = set()
    for _ in range(quotes):
        at = rng.randrange(rows)
        place = rng.randint(0, len(lines[at]))
        lines[at] = lines[at][:place] + '"' + lines[at][place:]
        hit.add(at + 2)
    path = write(tmp_path_factory.mktemp("quotes") / "t.csv", lines)
    table = open_table(path)
    (batch,) = table.batches({name: name for name in table.columns})
    read = {row["row"]: row for row in batch.iter_rows(named=True)}
    assert list(read) == list(range(2, rows + 2))
    for number, values in read.items():
        if number not in hit:
            assert values["reason"] is None and values["id"] == f"p{number - 2}"
