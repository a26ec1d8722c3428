"""A folder of photos: positions from their own metadata, HEIC, and a reason for each photo that is refused."""

import io
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import IFDRational

from schemas.settings.ingest import IngestSettings, PictureRules
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.ingest import TableRefused, check_dataset, dataset_name, ingest_table, survey_table
from tasks.ingest.folder import folder_rows
from tasks.ingest.photo import Photo, prepare
from tasks.ingest.refusal import Refusal
from tasks.lake import Lake
from tasks.runtime.runner import Context
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")
RIGHTS = {"licence": "CC0", "attribution": "Photo {id} by Ana", "split": "train"}


def heic(picture: Image.Image, exif: Image.Exif) -> bytes:
    out = io.BytesIO()
    pillow_heif.from_pillow(picture).save(out, exif=exif.tobytes(), quality=90)
    return out.getvalue()


def ingest(path: Path, lake: Lake) -> tuple[dict[str, dict[str, Any]], dict[str, tuple[str, str]]]:
    """The photos that came in by their path, and the reason and given text of the others."""
    chosen = IngestSettings(**RIGHTS)  # type: ignore[arg-type]
    found = survey_table(path, chosen)
    name = dataset_name(path, chosen)
    check_dataset(lake, found, name, chosen, PlanSettings())
    context = Context(lake, connect(ServicesSettings(), {}), SpreadSettings(workers=1))
    result = ingest_table(found, name, chosen, PlanSettings(), context)
    assert result.stage.total == result.stage.kept + result.stage.rejected + result.stage.skipped
    refused = {
        one["given"] or one["id"]: reason for reason, ones in result.report.refused.examples.items() for one in ones
    }
    return {row["source_id"]: row for row in lake.read("images").to_dicts()}, refused


def test_photos_of_a_folder_come_in_at_the_position_their_camera_wrote(darkroom: Any, tmp_path: Path) -> None:
    paris, quito = (48.8566, 2.3522), (-0.1807, -78.4678)
    darkroom.save("a.jpg", seed=1, exif=darkroom.exif(paris, taken="2024:05:01 12:00:00"))
    darkroom.save("trip/b.JPG", seed=2, exif=darkroom.exif(quito))
    darkroom.save("trip/c.heic", heic(darkroom.picture(3), darkroom.exif(paris, orientation=6)))
    darkroom.save("none.jpg", seed=4)
    darkroom.save("nofix.jpg", seed=5, exif=darkroom.exif((0.0, 0.0)))
    darkroom.save("ocean.jpg", seed=6, exif=darkroom.exif((-40.0, -110.0)))
    beyond = darkroom.exif(paris)
    beyond.get_ifd(0x8825)[2] = (IFDRational(95), IFDRational(0), IFDRational(0))
    darkroom.save("beyond.jpg", seed=7, exif=beyond)
    broken = darkroom.exif(paris)
    broken.get_ifd(0x8825)[1] = "Q"
    darkroom.save("broken.jpg", seed=8, exif=broken)
    darkroom.save("cut.heic", heic(darkroom.picture(9), darkroom.exif(paris))[:300])
    darkroom.save("notes.txt", b"no picture")
    darkroom.save("scan.tif", b"II*\0")
    lake = Lake(darkroom.folder / "lake")  # a lake inside the folder is not read again
    outside = tmp_path / "outside.jpg"
    shutil.copy(darkroom.folder / "a.jpg", outside)
    (darkroom.folder / "link.jpg").symlink_to(outside)
    (darkroom.folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    for _ in range(2):  # the second run finds its own lake there and nothing to do
        photos, refused = ingest(darkroom.folder, lake)
        assert {path: (row["lat"], row["lon"]) for path, row in photos.items()} == {
            "a.jpg": pytest.approx(paris, abs=1e-5),
            "trip/b.JPG": pytest.approx(quito, abs=1e-5),
            "trip/c.heic": pytest.approx(paris, abs=1e-5),
        }
        assert refused == {
            "-40.0000000, -110.0000000": "mid_ocean", "link.jpg": "path_escapes",
            **dict.fromkeys(("beyond.jpg", "broken.jpg", "cut.heic"), "no_position"),
        }  # fmt: skip
    assert photos["a.jpg"]["captured_at"].year == 2024 and photos["a.jpg"]["source"] == "photos"
    stored = lake.images.read(photos["trip/c.heic"]["sha256"], "jpg")
    shown = Image.open(io.BytesIO(stored))
    assert shown.size == (300, 400) and not shown.getexif()


def test_a_heic_photo_is_stored_upright_as_a_jpeg_without_metadata(darkroom: Any) -> None:
    picture = darkroom.picture(1)
    data = heic(picture, darkroom.exif((48.8566, 2.3522), orientation=8))
    found = prepare(data, {"lat": 48.8566, "lon": 2.3522, "kind": None}, PictureRules())
    assert isinstance(found, Photo) and (found.extension, found.width, found.height) == ("jpg", 300, 400)
    tags = Image.Exif()
    tags[0x0112] = 8
    turned = io.BytesIO()
    picture.save(turned, "PNG", exif=tags)
    upright = np.array(ImageOps.exif_transpose(Image.open(turned))).astype(int)
    assert np.abs(np.array(Image.open(io.BytesIO(found.data))).astype(int) - upright).mean() < 6
    assert found.source_bytes == len(data) and b"Exif" not in found.data
    far = prepare(data, {"lat": 10.0, "lon": 10.0, "kind": None}, PictureRules())
    assert isinstance(far, Refusal) and far.reason == "exif_position_far"


def test_a_folder_without_pictures_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(TableRefused, match="the folder holds no picture"):
        survey_table(tmp_path, IngestSettings(**RIGHTS))  # type: ignore[arg-type]
    (tmp_path / "a.jpg").write_bytes(b"x")
    with pytest.raises(TableRefused, match="give --licence"):
        survey_table(tmp_path, IngestSettings())
    monkeypatch.chdir(tmp_path)
    assert dataset_name(Path(), IngestSettings()) == tmp_path.name


def test_a_heic_photo_with_long_notes_of_its_maker_is_taken(darkroom: Any) -> None:
    exif = darkroom.exif((48.8566, 2.3522), taken="2019:06:07 08:09:10", offset="+02:00")
    exif.get_ifd(0x8769)[0x927C] = b"\x00\xff" * 96_000  # MakerNote; a JPEG holds 64 KB of EXIF at most
    data = heic(darkroom.picture(4), exif)
    photo = prepare(data, {"lat": 48.8566, "lon": 2.3522, "kind": None}, PictureRules())
    assert isinstance(photo, Photo), photo
    assert photo.taken_at == datetime(2019, 6, 7, 6, 9, 10, tzinfo=UTC)


def test_other_endings_are_taken_or_named(darkroom: Any) -> None:
    paris = (48.8566, 2.3522)
    darkroom.save("a.jfif", darkroom.jpeg(exif=darkroom.exif(paris)))
    darkroom.save("b.hif", heic(darkroom.picture(5), darkroom.exif(paris)))
    for raw in ("c.orf", "d.rw2", "e.raf"):
        darkroom.save(raw, b"raw")
    rows, notes = folder_rows(darkroom.folder)
    assert rows["path"].to_list() == ["a.jfif", "b.hif"] and rows["refused"].null_count() == 2
    assert [note.split()[2] for note in notes] == [".orf", ".raf", ".rw2"]
