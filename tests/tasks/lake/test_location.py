"""What names a lake, and what is refused."""

import pickle
from pathlib import Path

import pytest

from schemas.errors import LakeError
from tasks.lake import Lake
from tasks.lake.blobs import LocalBlobs
from tasks.lake.location import Location
from tasks.lake.state import state_folder


def test_a_path_is_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Location.parse("lake").folder == tmp_path / "lake"
    assert Location.parse(f"file://{tmp_path}/lake") == Location.parse(tmp_path / "lake")
    assert state_folder(Location.parse("lake")) == tmp_path / "lake" / ".state"
    assert Location.parse("lake").storage_options() == {}


@pytest.mark.parametrize("given", ["s3://bucket/a/b", "s3://bucket/a/b/", "gs://bucket/a/b", "az://container/a/b"])
def test_a_uri_is_an_object_store(given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    location = Location.parse(given)
    assert not location.is_local and location.uri == given.rstrip("/") and location.child("x").endswith("/a/b/x")
    monkeypatch.setenv("GEOFIX_STATE", str(tmp_path))
    assert state_folder(location).parent == tmp_path
    assert state_folder(location) != state_folder(Location.parse("s3://bucket/a/c"))
    monkeypatch.delenv("GEOFIX_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder(location).parent == tmp_path / "xdg" / "geofix"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "is empty"),
        ("ftp://host/lake", "begins with s3://"),
        ("s3://", "s3://bucket/prefix"),
        ("s3://bucket/lake?versionId=1", "s3://bucket/prefix"),
        ("s3://AKIAKEY:hunter2@bucket/lake", "environment"),
        ("50%20/lake", "must not hold '%'"),
        ("a[1]/lake", r"must not hold '\['"),
    ],
)
def test_other_names_are_refused_without_showing_a_secret(given: str, said: str) -> None:
    with pytest.raises(LakeError, match=said) as refused:
        Lake(given)
    assert "hunter2" not in str(refused.value) and "AKIAKEY" not in str(refused.value)


def test_plain_http_is_allowed_only_where_the_endpoint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert Location.parse("s3://b/p").storage_options() == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert Location.parse("s3://b/p").storage_options() == {"allow_http": "true"}
    assert Location.parse("lake").storage_options() == {}


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", "", "a\\b", "a\0b"])
def test_a_key_cannot_leave_the_lake(tmp_path: Path, key: str) -> None:
    with pytest.raises(LakeError, match="not a key inside the lake"):
        LocalBlobs(tmp_path).get(key)


def test_a_pickled_remote_lake_holds_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("GEOFIX_STATE", str(tmp_path))
    lake = Lake("s3://bucket/prefix", read_only=True)
    assert b"hunter2" not in pickle.dumps(lake) and "hunter2" not in repr(vars(lake))
    assert pickle.loads(pickle.dumps(lake)).uri == "s3://bucket/prefix"
    with pytest.raises(LakeError, match="not a local folder"):
        _ = lake.root
