"""Pictures: each defect, upright pixels, positions of the camera, panoramas, and nothing left of the metadata."""

import io
import random
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import IFDRational

from schemas.settings.ingest import PictureRules
from tasks.geo.distance import distance_km
from tasks.imaging.decode import Encoded
from tasks.imaging.images import inspect
from tasks.imaging.tags import read_tags
from tasks.ingest import photo as photo_module
from tasks.ingest.photo import Photo, prepare
from tasks.ingest.refusal import FIXES, Refusal

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning"),  # as tasks.imaging.decode has it
]
ITEM = {"lat": 48.8566, "lon": 2.3522, "kind": None}
GPANO = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description GPano:ProjectionType="equirectangular" '
    b'GPano:PoseHeadingDegrees="-30.5"/></x:xmpmeta>'
)


def taken(data: bytes, item: dict[str, Any] | None = None, **rules: Any) -> Photo:
    found = prepare(data, {**ITEM, **(item or {})}, PictureRules(**rules))
    assert isinstance(found, Photo), found
    return found


def refused(data: bytes, item: dict[str, Any] | None = None, **rules: Any) -> Refusal:
    found = prepare(data, {**ITEM, **(item or {})}, PictureRules(**rules))
    assert isinstance(found, Refusal), "it was taken"
    assert found.reason in FIXES
    return found


def animated(kind: str) -> bytes:
    out = io.BytesIO()
    frames = [Image.new("RGB", (300, 300), colour) for colour in ("red", "blue")]
    frames[0].save(out, kind, save_all=True, append_images=frames[1:])
    return out.getvalue()


def saved(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (300, 300), "red").save(out, kind)
    return out.getvalue()


def bomb() -> bytes:
    """A PNG of a few kilobytes that says it has 40,000 x 40,000 pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 40_000, 40_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"hello, I am a text", "not_an_image"),
        (b"<html><body>404</body></html>", "not_an_image"),
        (saved("BMP"), "unsupported_format"),
        (saved("TIFF"), "unsupported_format"),
        (saved("WEBP"), "unsupported_format"),
        (saved("GIF"), "unsupported_format"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "truncated"),
        (b"\0\0\0\x18ftypavif" + bytes(100), "unsupported_format"),
        (b"%PDF-1.7", "not_an_image"),
        (animated("GIF"), "animated"),
        (animated("PNG"), "animated"),
        (animated("WEBP"), "animated"),
        (bomb(), "decompression_bomb"),
    ],
)
def test_files_that_are_no_photos(data: bytes, reason: str) -> None:
    assert refused(data).reason == reason


def test_truncated_and_small(darkroom: Any) -> None:
    data = darkroom.jpeg()
    assert refused(data[: len(data) // 2]).reason == "truncated"
    assert refused(data[:200]).reason in ("truncated", "not_an_image")
    small = refused(darkroom.jpeg(width=199, height=200))
    assert small.reason == "too_small" and "199 x 200" in small.problem
    assert taken(darkroom.jpeg(width=200, height=200)).width == 200


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_stored_upright(darkroom: Any, orientation: int) -> None:
    scene = darkroom.picture(5, 400, 300)
    # What the camera wrote: the scene turned back, so that the tag makes it upright again.
    lying = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = scene.transpose(lying[orientation]) if orientation > 1 else scene
    out = io.BytesIO()
    stored.save(out, "JPEG", quality=98, exif=darkroom.exif(orientation=orientation))
    photo = taken(out.getvalue())
    assert (photo.width, photo.height) == (400, 300)
    upright = Image.open(io.BytesIO(photo.data))
    assert upright.size == (400, 300) and ImageOps.exif_transpose(upright).size == (400, 300)
    assert np.abs(np.asarray(upright, int) - np.asarray(scene, int)).mean() < 4
    assert photo.notes == ([] if orientation == 1 else [f"turned_upright: orientation {orientation}"])


@pytest.mark.parametrize("tag", [0, 9, 77])
def test_senseless_orientations_are_noted_and_left(darkroom: Any, tag: int) -> None:
    photo = taken(darkroom.jpeg(exif=darkroom.exif(orientation=tag)))
    assert photo.notes == [f"orientation_invalid: {tag}"]
    assert (photo.width, photo.height) == (400, 300)


def test_a_tag_that_was_left_behind_when_the_picture_was_turned(darkroom: Any) -> None:
    stale = darkroom.jpeg(width=300, height=400, exif=darkroom.exif(orientation=6, size=(400, 300)))
    assert refused(stale).reason == "orientation_contradicts"
    ignored, applied = taken(stale, orientation="ignore"), taken(stale, orientation="apply")
    assert (ignored.width, ignored.height) == (300, 400)
    assert (applied.width, applied.height) == (400, 300)
    assert "orientation_contradicts" in ignored.notes
    honest = darkroom.jpeg(exif=darkroom.exif(orientation=6, size=(400, 300)))
    assert taken(honest).notes == ["turned_upright: orientation 6"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_tag_that_is_ignored_turns_nothing(darkroom: Any, kind: str) -> None:
    out = io.BytesIO()
    darkroom.picture(1, 300, 400).save(out, kind, exif=darkroom.exif(orientation=6, size=(400, 300)))
    photo = taken(out.getvalue(), orientation="ignore")
    assert (photo.width, photo.height) == (300, 400) and photo.notes == ["orientation_contradicts"]
    assert inspect(photo.data).width == 300
    pano = io.BytesIO()
    darkroom.picture(1, 600, 300).save(pano, kind, exif=darkroom.exif(orientation=6, size=(300, 600)))
    rules = {"orientation": "ignore", "panorama_width": 512, "panorama_min_pixels": 1000}
    assert taken(pano.getvalue(), {"kind": "panorama"}, **rules).width == 512


def part(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(darkroom: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    darkroom.picture().save(out, "PNG", **options)
    return out.getvalue()


def test_tags_of_a_png_are_read_without_its_pixels(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = darkroom.exif(position=(48.8570, 2.3530), orientation=8)
    before = png(darkroom, exif=exif)
    plain = png(darkroom)
    end = plain.index(b"IEND") - 4
    behind = plain[:end] + part(b"eXIf", exif.tobytes()) + plain[end:]

    def load(*_: Any) -> None:
        raise AssertionError("decoded")

    with monkeypatch.context() as patch:
        patch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
        for data, orientation in ((before, 8), (behind, 8), (plain, 1)):
            assert Encoded.open(data).orientation == orientation
            tags = read_tags(data)
            assert (tags.orientation or 1) == orientation and (tags.lat is None) == (data is plain)
        huge = part(b"IHDR", struct.pack(">IIBBBBB", 15_400, 15_400, 8, 6, 0, 0, 0))
        refusal = refused(plain[:8] + huge + plain[33:])
        assert refusal.reason == "decompression_bomb"
    assert taken(behind).notes == ["turned_upright: orientation 8"]


@pytest.mark.parametrize("name", [b"zTXt", b"iCCP", b"iTXt"])
def test_texts_that_unpack_to_too_much_cost_nothing(darkroom: Any, name: bytes) -> None:
    packed = zlib.compress(bytes(80_000_000), 9)
    body = {b"zTXt": b"Comment\0\0" + packed, b"iCCP": b"icc\0\0" + packed, b"iTXt": b"XML\0\1\0\0\0" + packed}[name]
    plain = png(darkroom)
    photo = taken(plain[:33] + part(name, body) + plain[33:])
    assert photo.data == plain and photo.notes == ["metadata_unreadable"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 12, 20, 33, 40])
def test_a_picture_that_breaks_off_at_once_is_truncated(darkroom: Any, kind: str, length: int) -> None:
    out = io.BytesIO()
    darkroom.picture().save(out, kind)
    assert refused(out.getvalue()[:length]).reason == "truncated"


def test_the_cameras_position_against_the_tables(darkroom: Any) -> None:
    here = darkroom.jpeg(exif=darkroom.exif(position=(48.8570, 2.3530)))
    assert taken(here).kind == "photo"
    berlin = darkroom.jpeg(exif=darkroom.exif(position=(52.5, 13.4)))
    said = refused(berlin)
    away_km = distance_km(48.8566, 2.3522, 52.5, 13.4)
    assert said.reason == "exif_position_far" and f"{away_km:,.1f} km" in said.problem and "52.50000" in said.problem
    assert taken(berlin, exif_km=None).kind == "photo"
    assert taken(berlin, exif_km=away_km + 0.1).kind == "photo"
    assert refused(berlin, exif_km=away_km - 0.1).reason == "exif_position_far"
    exchanged = darkroom.jpeg(exif=darkroom.exif(position=(2.3522, 48.8566)))
    assert "exchanged they agree" in refused(exchanged).problem
    no_fix = darkroom.jpeg(exif=darkroom.exif(position=(0.0, 0.0)))
    assert taken(no_fix).kind == "photo", "a receiver without a fix says nothing"


@given(st.floats(-90, 90), st.floats(-180, 180))
@settings(max_examples=60, deadline=None)
def test_positions_survive_degrees_minutes_and_seconds(lat: float, lon: float) -> None:
    from PIL.TiffImagePlugin import IFDRational

    def sixty(value: float) -> tuple[IFDRational, ...]:
        whole, rest = divmod(abs(value) * 3600, 3600)
        minutes, seconds = divmod(rest, 60)
        return IFDRational(int(whole)), IFDRational(int(minutes)), IFDRational(int(seconds * 10_000), 10_000)

    exif = Image.Exif()
    gps = exif.get_ifd(0x8825)
    gps.update({1: "S" if lat < 0 else "N", 2: sixty(lat), 3: "W" if lon < 0 else "E", 4: sixty(lon)})
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG", exif=exif)
    tags = read_tags(out.getvalue())
    if tags.lat is None or tags.lon is None:
        assert abs(lat) < 1e-6 and abs(lon) < 1e-6
    else:
        assert distance_km(lat, lon, tags.lat, tags.lon) < 0.001


def test_time_and_direction_of_the_camera(darkroom: Any) -> None:
    exif = darkroom.exif(taken="2019:06:07 08:09:10", offset="+02:00")
    exif.get_ifd(0x8825)[17] = 123.5
    photo = taken(darkroom.jpeg(exif=exif))
    assert photo.taken_at == datetime(2019, 6, 7, 6, 9, 10, tzinfo=UTC) and photo.compass_angle == 123.5
    assert taken(darkroom.jpeg(exif=darkroom.exif(taken="0000:00:00 00:00:00"))).taken_at is None


def clocks(darkroom: Any, taken: str | None, offset: str | None = None, gps: dict[int, Any] | None = None) -> bytes:
    exif = darkroom.exif(taken=taken, offset=offset)
    exif.get_ifd(0x8825).update(gps or {})
    data: bytes = darkroom.jpeg(exif=exif)
    return data


SATELLITE = {29: "2019:06:07", 7: (6.0, 9.0, 10.5)}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        # The receiver's clock is UTC, whatever the camera's shows.
        ({"taken": "2019:06:07 08:09:11", "gps": SATELLITE}, datetime(2019, 6, 7, 6, 9, 10, 500_000, UTC)),
        ({"taken": None, "gps": SATELLITE}, datetime(2019, 6, 7, 6, 9, 10, 500_000, UTC)),
        # The time of an old fix is not that of the picture.
        ({"taken": "2019:06:09 08:00:00", "gps": SATELLITE}, datetime(2019, 6, 9, 6, 0, 0, tzinfo=UTC)),
        ({"taken": "2019:06:07 08:09:10", "offset": "-07:00"}, datetime(2019, 6, 7, 15, 9, 10, tzinfo=UTC)),
        # Only the camera's own clock: Paris in summer, and in winter.
        ({"taken": "2019:06:07 08:09:10"}, datetime(2019, 6, 7, 6, 9, 10, tzinfo=UTC)),
        ({"taken": "2019:01:07 08:09:10"}, datetime(2019, 1, 7, 7, 9, 10, tzinfo=UTC)),
        # A receiver that says no date.
        ({"taken": "2019:06:07 08:09:10", "gps": {7: (6.0, 9.0, 10.0)}}, datetime(2019, 6, 7, 6, 9, 10, tzinfo=UTC)),
    ],
)
def test_camera_time_becomes_utc(darkroom: Any, told: dict[str, Any], expected: datetime) -> None:
    photo = taken(clocks(darkroom, **told))
    assert photo.taken_at == expected and not photo.notes


def test_a_local_time_without_a_zone_is_called_one(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.imaging.tags.tzfpy.get_tz", lambda lon, lat: "")
    photo = taken(clocks(darkroom, "2019:06:07 08:09:10"))
    assert photo.taken_at == datetime(2019, 6, 7, 8, 9, 10, tzinfo=UTC)
    assert photo.notes == ["captured_at_is_local_time"]


def test_decimal_minutes_with_seconds_of_zero_by_zero(darkroom: Any) -> None:
    gps = {1: "N", 2: (48.0, 51.396, IFDRational(0, 0)), 3: "E", 4: (2.0, 21.132, IFDRational(0, 0))}
    tags = read_tags(clocks(darkroom, None, gps=gps))
    assert (tags.lat, tags.lon) == (pytest.approx(48.8566), pytest.approx(2.3522))
    assert read_tags(clocks(darkroom, None, gps={**gps, 2: (48.0, 51.0, IFDRational(0, 0))})).lat is None


def test_a_picture_of_two_hundred_megapixels_is_no_bomb() -> None:
    out = io.BytesIO()
    Image.new("L", (16_320, 12_240)).save(out, "JPEG", quality=1)
    assert Encoded.open(out.getvalue()).facts.width == 16_320


@pytest.mark.parametrize(("reference", "noted"), [("M", True), ("T", False), (None, False)])
def test_a_direction_from_the_magnetic_pole_is_noted(darkroom: Any, reference: str | None, noted: bool) -> None:
    exif = darkroom.exif()
    exif.get_ifd(0x8825)[17] = 123.5
    if reference:
        exif.get_ifd(0x8825)[16] = reference
    data = darkroom.jpeg(exif=exif)
    assert (read_tags(data).compass_angle, read_tags(data).magnetic) == (123.5, noted)
    item = {"lat": 48.5, "lon": 2.5, "kind": None}
    notes = [prepare(data, {**item, "compass_angle": angle}, PictureRules()).notes for angle in (None, 90.0)]  # type: ignore[union-attr]
    assert notes == [["compass_angle_magnetic"] if noted else [], []], "the table's own angle is taken, if it has one"


def test_nothing_of_the_metadata_is_left(darkroom: Any) -> None:
    exif = darkroom.exif(position=(48.8566, 2.3522), taken="2019:06:07 08:09:10")
    exif[0x010F] = "SecretCamera"
    data = darkroom.jpeg(exif=exif, xmp=b"<x>SecretName</x>", comment=b"SecretWord")
    photo = taken(data)
    assert b"Secret" not in photo.data and not Image.open(io.BytesIO(photo.data)).getexif()
    assert photo.source_bytes == len(data)


def test_panoramas_declared_or_by_their_own_word(darkroom: Any) -> None:
    rules = {"panorama_width": 512, "panorama_min_pixels": 10_000}
    sphere = darkroom.jpeg(width=600, height=300, xmp=GPANO)
    for data, item in ((sphere, {}), (darkroom.jpeg(width=600, height=300), {"kind": "panorama"})):
        photo = taken(data, item, **rules)
        assert (photo.kind, photo.width, photo.height) == ("panorama", 512, 256)
    assert taken(sphere, **rules).compass_angle == 329.5
    exif = darkroom.exif()
    exif.get_ifd(0x8825)[17] = 349.25
    for pose, angle in ((b"0.0", 349.25), (b"-30.5", 329.5)):
        xmp = GPANO.replace(b"-30.5", pose)
        assert read_tags(darkroom.jpeg(width=600, height=300, xmp=xmp, exif=exif)).compass_angle == angle
    assert taken(sphere, {"kind": "photo"}, **rules).kind == "photo", "the table's word counts more"
    assert taken(darkroom.jpeg(width=600, height=300), **rules).kind == "photo", "2:1 alone proves nothing"
    part = darkroom.jpeg(width=600, height=200, xmp=GPANO)
    assert refused(part, **rules).reason == "not_equirectangular"
    assert refused(darkroom.jpeg(), {"kind": "panorama"}, **rules).reason == "not_equirectangular"
    element = GPANO.replace(b'GPano:ProjectionType="equirectangular"', b"").replace(
        b"/></x", b"><GPano:ProjectionType>equirectangular</GPano:ProjectionType></rdf:Description></x"
    )
    assert read_tags(darkroom.jpeg(width=600, height=300, xmp=element)).equirectangular


def test_png_stays_png(darkroom: Any) -> None:
    out = io.BytesIO()
    darkroom.picture().save(out, "PNG")
    photo = taken(out.getvalue())
    assert photo.extension == "png" and inspect(photo.data).format == "PNG"


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
@settings(max_examples=120, deadline=None)
def test_no_damage_breaks_the_reading(seed: int, flips: int) -> None:
    rng = random.Random(seed)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 3.0), 3: "E", 4: (2.0, 21.0, 1.0), 17: 90.0})
    exif.get_ifd(0x8769)[0x9003] = "2019:06:07 08:09:10"
    out = io.BytesIO()
    Image.frombytes("RGB", (8, 6), bytes(range(144))).resize((240, 180)).save(out, "JPEG", exif=exif, xmp=GPANO)
    data = bytearray(out.getvalue())
    for _ in range(flips):
        data[rng.randrange(20, 700)] = rng.randrange(256)
    found = prepare(bytes(data), ITEM, PictureRules(exif_km=None))
    assert isinstance(found, Photo | Refusal)
    if isinstance(found, Photo):
        assert inspect(found.data).width == found.width
    else:
        assert found.reason in FIXES


def test_large_pictures_are_worked_on_one_by_one(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, now, most = threading.Lock(), 0, 0
    cleaned = photo_module.cleaned

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            return cleaned(*args, **kwargs)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(photo_module, "cleaned", counted)
    monkeypatch.setattr(photo_module, "LARGE_PIXELS", 400 * 300 - 1)
    data, item = darkroom.jpeg(), {"lat": 48.5, "lon": 2.5, "kind": None}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: prepare(data, item, PictureRules()), range(40)))
    assert all(isinstance(one, Photo) for one in found) and most == 1
    for _ in range(3):  # one that is refused makes room for the next
        refused = prepare(data, item, PictureRules(min_pixels=10**6))
        assert isinstance(refused, Refusal) and refused.reason == "too_small"
