"""Pictures by their ids in a dataset's many folders: each is found, and none is looked for in all of them."""

from pathlib import Path
from typing import Any

import pytest

from tasks.ingest.files import Found, PictureFolder
from tasks.ingest.refusal import Refusal


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are looked for."""
    seen: list[str] = []
    stat = PictureFolder._stat

    def counted(self: PictureFolder, name: str, given: str) -> Any:
        seen.append(name)
        return stat(self, name, given)

    monkeypatch.setattr(PictureFolder, "_stat", counted)
    return seen


def fill(root: Path, folders: int) -> PictureFolder:
    for number in range(folders):
        (root / f"{number:02}").mkdir()
        (root / f"{number:02}" / f"p{number}.jpg").write_bytes(b"x")
    return PictureFolder(root)


def test_a_picture_costs_two_looks_however_many_folders(tmp_path: Path, tries: list[str]) -> None:
    folder = fill(tmp_path, 98)
    for number in (97, 0, 41):
        found = folder.find_by_id([f"p{number}.jpg"], in_subfolders=True)
        assert isinstance(found, Found) and found.name == f"{number:02}/p{number}.jpg"
    missing = folder.find_by_id(["none.jpg"], in_subfolders=True)
    assert isinstance(missing, Refusal) and missing.reason == "missing_file"
    assert len(tries) == 7


def test_the_folder_itself_comes_first_and_then_the_first_of_its_folders(tmp_path: Path) -> None:
    folder = fill(tmp_path, 3)
    for name in ("02/twice.jpg", "01/twice.jpg", "p1.jpg", "02/b.jpg"):
        (tmp_path / name).write_bytes(b"x")
    names = [folder.find_by_id([name], in_subfolders=True).name for name in ("twice.jpg", "p1.jpg")]  # type: ignore[union-attr]
    assert names == ["01/twice.jpg", "p1.jpg"]
    found = folder.find_by_id(["b", "b.jpg"], in_subfolders=True)
    assert isinstance(found, Found) and found.name == "02/b.jpg"
    assert isinstance(folder.find_by_id(["twice.jpg"], in_subfolders=False), Refusal)


def test_names_with_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "images/ab/cd").mkdir(parents=True)
    (tmp_path / "images/ab/cd/1.jpg").write_bytes(b"x")
    found = PictureFolder(tmp_path).find_by_id(["ab/cd/1.jpg"], in_subfolders=True)
    assert isinstance(found, Found) and found.name == "images/ab/cd/1.jpg"


def test_a_folder_that_leads_out_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a.jpg").write_bytes(b"x")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/link").symlink_to(tmp_path / "secret")
    found = PictureFolder(tmp_path / "photos").find_by_id(["a.jpg"], in_subfolders=True)
    assert isinstance(found, Refusal) and found.reason == "path_escapes"
