"""`geofix view`: one row a view, nothing redone, the panorama's licence carried along, one clear line on a mistake."""

import io
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.command import Call, UsageError
from flows.cli.view import view_panorama
from schemas.errors import GeofixError, InputError, NotFound
from tasks.imaging.decode import Encoded, inspect, jpeg
from tasks.imaging.perspective import Panorama, View
from tasks.lake import Commit, Lake
from tasks.lake.trace import trace
from tasks.review.views import ViewRefused, cut_view

ATTRIBUTION = "Image 42 by walker on Mapillary, CC BY-SA 4.0"


def pixels(seed: int) -> np.ndarray:
    small = Image.frombytes("RGB", (16, 8), np.random.default_rng(seed).bytes(16 * 8 * 3))
    return np.array(small.resize((1024, 512), Image.Resampling.BICUBIC))


def put(lake: Lake, image_id: str, seed: int = 0, **other: Any) -> None:
    sha256 = lake.images.put(jpeg(pixels(seed), 92), "jpg")
    row = {
        **{"image_id": image_id, "kind": "panorama", "lat": 48.0, "lon": 2.0, "source": "mapillary", "source_id": "42"},
        **{"licence": "CC BY-SA 4.0", "attribution": ATTRIBUTION, "sha256": sha256, "extension": "jpg"},
        **{"compass_angle": 350.0, "stage": "collect", "item_id": "p", "made_from": "m", "run_id": "r"},
        **{"width": 1024, "height": 512, "written_at": datetime.now(UTC), **other},
    }
    lake.upsert("images", [row], Commit(f"run-{image_id}-{seed}-{len(other)}", 1))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    put(made, "pano")
    put(made, "blind", compass_angle=None)
    put(made, "photo", kind="photo")
    put(made, "gone", tombstone="deleted upstream")
    put(made, "narrow", kind="panorama", sha256=made.images.put(jpeg(pixels(0)[:, :600], 92), "jpg"))
    return made


def test_a_view_is_cut_recorded_and_found_again(lake: Lake) -> None:
    view = View(30, 10, 80, 320, 240)
    row, is_new = cut_view(lake, "pano", view)
    assert is_new
    data = lake.images.read(row["sha256"], "jpg")
    panorama = Panorama(Encoded.open(jpeg(pixels(0), 92)).pixels())
    assert data == jpeg(panorama.view(view, panorama.fineness(view)), 92)
    version = lake.version("views")
    again, is_new = cut_view(lake, "pano", View(390, 10, 80, 320, 240))
    assert not is_new
    assert again["view_id"] == row["view_id"]
    assert lake.version("views") == version, "nothing is written twice"
    assert lake.read("views").height == 1
    stored = lake.read("views").row(0, named=True)
    assert (stored["yaw_deg"], stored["pitch_deg"], stored["fov_deg"], stored["roll_deg"]) == (30, 10, 80, 0)
    assert (stored["width"], stored["height"], stored["bearing_deg"]) == (320, 240, 20)
    assert stored["licence"] == "CC BY-SA 4.0"
    assert stored["attribution"].startswith(ATTRIBUTION) and "view" in stored["attribution"]
    assert re.fullmatch("[0-9a-f]{24}", stored["view_id"])  # it tells nothing about the picture


def test_other_angles_other_rows_and_a_lost_file_is_cut_again(lake: Lake) -> None:
    ids = {cut_view(lake, "pano", View(yaw, 0, 90, 64, 64))[0]["view_id"] for yaw in (0, 1, 2, 180, -180)}
    assert len(ids) == 4  # 180 degrees left and right is the same
    assert lake.read("views").height == 4
    row, _ = cut_view(lake, "pano", View(0, 0, 90, 64, 64))
    lake.images.path(row["sha256"], "jpg").unlink()
    again, is_new = cut_view(lake, "pano", View(0, 0, 90, 64, 64))
    assert is_new
    assert again["sha256"] == row["sha256"]
    assert lake.read("views").height == 4


def test_a_new_version_of_the_panorama_makes_a_new_view(lake: Lake) -> None:
    first, _ = cut_view(lake, "pano", View(5, 0, 90, 64, 64))
    put(lake, "pano", seed=1)
    second, is_new = cut_view(lake, "pano", View(5, 0, 90, 64, 64))
    assert is_new
    assert second["view_id"] == first["view_id"]
    assert second["sha256"] != first["sha256"] and second["image_sha256"] != first["image_sha256"]
    assert lake.read("views")["sha256"].to_list() == [second["sha256"]]


def test_a_bearing_is_looked_at_by_the_recorded_compass_angle(lake: Lake) -> None:
    by_bearing, _ = cut_view(lake, "pano", View(fov_deg=60, width=64, height=64), bearing_deg=15)
    assert by_bearing["yaw_deg"] == 25  # the middle looks to 350
    assert by_bearing["bearing_deg"] == 15
    _, is_new = cut_view(lake, "pano", View(25, 0, 60, 64, 64))
    assert not is_new
    with pytest.raises(ViewRefused, match="image blind has no recorded compass angle; give --yaw"):
        cut_view(lake, "blind", View(), bearing_deg=15)
    assert cut_view(lake, "blind", View(width=64, height=64))[0]["bearing_deg"] is None


@pytest.mark.parametrize(
    ("image_id", "words"),
    [
        ("photo", "image photo is a photo, views are cut from panoramas"),
        ("nothing", "no image has the id 'nothing'"),
        ("gone", "image gone is gone: deleted upstream"),
        ("narrow", "image narrow cannot be cut: .*600 x 512 is not a full panorama"),
    ],
)
def test_what_is_no_panorama_is_refused(lake: Lake, image_id: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cut_view(lake, image_id, View())
    assert lake.version("views") == -1, "nothing is written"


def test_the_way_back_from_a_view(lake: Lake) -> None:
    row, _ = cut_view(lake, "pano", View(width=64, height=64))
    assert [step.table for step in trace(lake, row["view_id"])] == ["views", "images"]


def wanted(**given: Any) -> dict[str, Any]:
    plain = {"yaw": None, "bearing": None, "pitch": 0.0, "roll": 0.0, "fov": 90.0, "size": "64x48", "output": None}
    return {**plain, **given}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fov": 180.0}, "fov 180 is not between 1 and 170 degrees"),
        ({"fov": -5.0}, "fov -5 "),
        ({"pitch": 100.0}, "pitch 100 is not between -90"),
        ({"yaw": float("nan")}, "yaw nan"),
        ({"bearing": float("inf")}, "inf is not a number of degrees"),
        ({"size": "big"}, "--size big: must be WIDTHxHEIGHT"),
        ({"size": "64"}, "--size 64: must be WIDTHxHEIGHT"),
        ({"size": "4x4"}, "width 4 is not between 16 and 8192"),
        ({"yaw": 1.0, "bearing": 2.0}, "give one of them"),
        ({"output": Path("view.png")}, "views are JPEG pictures; name the file view.jpg"),
    ],
)
def test_wrong_options_are_named_before_anything_is_done(lake: Lake, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        view_panorama(Call(lake=str(lake.root)), "pano", **wanted(**given))
    assert lake.version("views") == -1


def geofix(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", "view", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.endswith(("_TOKEN", "_KEY"))}
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=900, check=False)


def test_as_a_user_calls_it(lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lake.root.parent
    monkeypatch.chdir(folder)
    options = ("--bearing", "0", "--pitch", "-5", "--fov", "70", "--size", "320x200", "-o", "out.jpg")
    done = geofix("pano", *options, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["yaw_deg"], said["bearing_deg"], said["new"], said["path"]) == (10, 0, True, "out.jpg")
    facts = inspect((folder / "out.jpg").read_bytes())
    assert (facts.width, facts.height) == (320, 200)
    assert not Image.open(io.BytesIO((folder / "out.jpg").read_bytes())).getexif()
    same = wanted(bearing=0.0, pitch=-5.0, fov=70.0, size="320x200")
    assert view_panorama(Call(lake=str(lake.root)), "pano", **same) == 0
    shown = capsys.readouterr().out
    assert "cut before" in shown and ATTRIBUTION in shown and "yaw 10°" in shown
    refused = CliRunner().invoke(app, ["view", "photo", "-o", "other.jpg"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("geofix: image photo is a photo") and refused.stderr.count("\n") == 1
    named = "view-pano-yaw10-pitch-5-fov70-320x200.jpg"
    assert (folder / named).read_bytes() == (folder / "out.jpg").read_bytes()
    with pytest.raises(GeofixError, match=r"--output .*nowhere/out\.jpg: cannot be written: No such file") as caught:
        view_panorama(Call(lake=str(lake.root)), "pano", **wanted(output=folder / "nowhere" / "out.jpg"))
    assert ".tmp" not in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == ["lake", "out.jpg", named]


def test_an_image_is_named_by_the_beginning_of_its_id(lake: Lake) -> None:
    put(lake, "abcdef01")
    put(lake, "abcdef02", kind="photo")
    put(lake, "fedcba99")
    small = View(width=64, height=64)
    assert cut_view(lake, "fedcba", small)[0]["image_id"] == "fedcba99"
    assert cut_view(lake, "abcdef01", small)[0]["image_id"] == "abcdef01"
    with pytest.raises(NotFound, match="2 images begin with 'abcdef': abcdef01, abcdef02"):
        cut_view(lake, "abcdef", small)
    with pytest.raises(NotFound, match=r"no image has the id 'fedcb', nor one that begins so \(6 letters"):
        cut_view(lake, "fedcb", small)
