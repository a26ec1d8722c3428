"""The list of signs by word that servers share through a file."""

import os
import threading
from pathlib import Path

import pytest

from infra.offline.kept_index import keep_lists, kept_lists, one_at_a_time
from infra.offline.sign_index import SignIndex
from infra.offline.world import World

LISTS = {"bäckerei": [1, 5], "東京": [2], "x": []}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"geofix-offline-{os.getuid()}"


def as_lists(found: object) -> dict[str, list[int]]:
    assert isinstance(found, dict)
    return {word: numbers.tolist() for word, numbers in found.items()}


def test_what_was_kept_comes_back_under_its_names_only(folder: Path) -> None:
    assert kept_lists("signs", 7) is None
    assert as_lists(keep_lists(LISTS, "signs", 7)) == LISTS
    assert as_lists(kept_lists("signs", 7)) == LISTS
    assert kept_lists("signs", 8) is None
    assert folder.stat().st_mode & 0o077 == 0


def test_a_damaged_file_and_a_folder_of_others_are_not_read(folder: Path) -> None:
    keep_lists(LISTS, "signs", 7)
    [file] = folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert kept_lists("signs", 7) is None
    keep_lists(LISTS, "signs", 7)
    folder.chmod(0o777)
    assert kept_lists("signs", 7) is None
    assert as_lists(keep_lists(LISTS, "signs", 7)) == LISTS  # nothing is written, the lists are there


def test_a_second_server_finds_the_same_streets_without_listing_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = SignIndex(World(7, 60)), SignIndex(World(7, 60))
    query = first._world.place(3).street
    found = first.find(query)
    assert found
    monkeypatch.setattr(second, "_listed", lambda: pytest.fail("the signs were listed again"))
    assert second.find(query) == found


def test_servers_that_start_together_list_once(folder: Path) -> None:
    listed = []

    def start() -> None:
        with one_at_a_time("signs", 7):
            if kept_lists("signs", 7) is None:
                listed.append(1)
                keep_lists(LISTS, "signs", 7)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed == [1]


def test_signs_of_a_large_world_are_listed_by_another_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = SignIndex(World(7, 60))._listed()
    monkeypatch.setenv("TMPDIR", str(folder.parent))
    monkeypatch.setattr("infra.offline.sign_index.LARGE", 50)
    index = SignIndex(World(7, 60))
    monkeypatch.setattr(index, "_listed", lambda: pytest.fail("the signs were listed in the server's process"))
    index.prepare()
    assert as_lists(index._places) == expected
