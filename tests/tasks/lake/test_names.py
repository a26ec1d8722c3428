"""Names of a lake: the same for the same origin, useless to anybody without the lake."""

import pickle
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import LakeError
from tasks.lake import Lake
from tasks.lake.blobs import LocalBlobs
from tasks.lake.names import KEY_BYTES, KEY_FILE, Names
from tasks.lake.names import new_key as NEW_KEY  # the real one: other tests have a fixed key


def test_a_name_is_the_same_every_time_and_in_every_process(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    name = lake.name("mapillary", "123", "p1")
    assert len(name) == 24 and int(name, 16) >= 0
    assert Lake(tmp_path).name("mapillary", "123", "p1") == name
    assert pickle.loads(pickle.dumps(lake)).name("mapillary", "123", "p1") == name


def test_another_lake_gives_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.lake.names.new_key", NEW_KEY)
    assert Lake(tmp_path / "a").name("mapillary", "123") != Lake(tmp_path / "b").name("mapillary", "123")


def test_a_copied_key_gives_the_same_names(tmp_path: Path) -> None:
    first = Lake(tmp_path / "a")
    name = first.name("mapillary", "123")
    other = Lake(tmp_path / "b")
    (other.root / KEY_FILE).write_bytes((first.root / KEY_FILE).read_bytes())
    assert other.name("mapillary", "123") == name


def test_a_key_is_random() -> None:
    assert len({NEW_KEY() for _ in range(100)}) == 100 and len(NEW_KEY()) == 2 * KEY_BYTES


def test_many_that_start_at_once_agree_on_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.lake.names.new_key", NEW_KEY)
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: Names(LocalBlobs(tmp_path)).name("x"), range(64)))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_the_key_is_for_its_owner_only(tmp_path: Path) -> None:
    Lake(tmp_path).name("x")
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "00" * 31, "not hex", "00" * 33])
def test_a_damaged_key_is_refused_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / KEY_FILE).write_text(content)
    with pytest.raises(LakeError, match=r"names\.key is damaged"):
        Lake(tmp_path).name("x")
    assert (tmp_path / KEY_FILE).read_text() == content


def test_a_lost_key_is_not_replaced_once_pictures_have_names(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    name = lake.name("x")
    key = (tmp_path / KEY_FILE).read_bytes()
    (tmp_path / KEY_FILE).unlink()
    assert Lake(tmp_path).name("x") == name, "nothing was named yet: a new one is as good (here the same)"
    (tmp_path / "tables" / "images").mkdir(parents=True)
    (tmp_path / "tables" / "images" / "part.parquet").touch()
    (tmp_path / KEY_FILE).unlink()
    reopened = Lake(tmp_path)
    with pytest.raises(LakeError, match=r"names\.key is missing, and every image id .* restore it"):
        reopened.name("x")
    assert not (tmp_path / KEY_FILE).exists()
    (tmp_path / KEY_FILE).write_bytes(key)
    assert Lake(tmp_path).name("x") == name


def test_nothing_is_left_behind_where_a_key_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(LakeError, match="no links here"):
        Names(LocalBlobs(tmp_path)).name("x")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    return Names(LocalBlobs(tmp_path_factory.mktemp("names")))


@given(one=st.lists(st.text(max_size=8), max_size=4), other=st.lists(st.text(max_size=8), max_size=4))
def test_different_parts_have_different_names(names: Names, one: list[str], other: list[str]) -> None:
    assert (names.name(*one) == names.name(*other)) == (one == other)
