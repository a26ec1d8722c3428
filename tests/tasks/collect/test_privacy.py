"""What is stored of a collected picture tells nothing of who took it, with what, and where."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from schemas.settings.collect import CollectSettings
from tasks.collect.street_view import WorkerContext, work
from tasks.lake import Lake

SECRET = b"Jane Q. Walker 48.85837 2.29448"
WIDE = SECRET.decode().encode("utf-16-be")
PLACE = {"id": "place1", "lat": 50.0, "lon": 8.0}
# Decoding needs these: tables, frames, scans, the JFIF and Adobe headers, the colour profile.
NEEDED = {0xC0, 0xC2, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xE2, 0xEE}


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def shown(width: int, height: int) -> Image.Image:
    coarse = np.random.default_rng(3).integers(0, 256, (6, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def profile() -> bytes:
    """sRGB whose description names somebody."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for at in range(132, 132 + 12 * int.from_bytes(data[128:132], "big"), 12):
        name, start, size = struct.unpack(">4sII", data[at : at + 12])
        if name in (b"desc", b"cprt"):
            words = WIDE[: size - 28]
            data[start + 28 : start + 28 + len(words)] = words
    return bytes(data)


def exif() -> bytes:
    tags = Image.Exif()
    for tag in (0x010E, 0x010F, 0x0110, 0x013B, 0x8298, 0x9C9D):  # description, make, model, artist, copyright, author
        tags[tag] = SECRET.decode()
    tags.get_ifd(0x8825)[2] = (48.0, 51.0, 30.1)
    tags.get_ifd(0x8825)[0x1B] = SECRET  # how the position was found
    tags.get_ifd(0x8769)[0x927C] = SECRET * 40  # MakerNote
    tags.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0" + SECRET  # comment
    tags.get_ifd(0x8769)[0xA431] = SECRET.decode()  # serial number of the body
    return b"Exif\0\0" + tags.tobytes()


def tell_tale(width: int, height: int) -> bytes:
    """A JPEG that says it in every way there is: a phone's picture with a second one behind it, and more."""
    small, out = io.BytesIO(), io.BytesIO()
    shown(160, 120).save(small, "JPEG", comment=SECRET)
    tags = Image.Exif()
    tags[0x010F] = SECRET.decode()
    shown(width, height).save(
        out, "MPO", save_all=True, append_images=[shown(width, height)], exif=tags, quality=90, icc_profile=profile()
    )
    plain = out.getvalue()
    assert plain.count(SECRET) >= 1 and Image.open(io.BytesIO(plain)).n_frames == 2
    extended = b"http://ns.adobe.com/xmp/extension/\0" + b"0" * 32 + struct.pack(">II", len(SECRET), 0) + SECRET
    told = [
        segment(0xE1, exif()),
        segment(0xE1, b"Exif\0\0" + SECRET + small.getvalue()),  # a thumbnail
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><dc:creator>" + SECRET + b"</dc:creator></x:xmpmeta>"),
        segment(0xE1, extended),
        segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\x1f" + SECRET),  # IPTC
        segment(0xE0, b"JFXX\0\x10" + small.getvalue()),  # another thumbnail
        segment(0xE3, b"Meta\0\0" + SECRET),
        segment(0xEB, b"JP\0\0" + SECRET),  # where it was captured and by what, signed (C2PA)
        segment(0xEF, SECRET),
        segment(0xFE, SECRET),
    ]
    return plain[:2] + b"".join(told) + plain[2:] + b"\0\0\0 ftypmp42" + SECRET  # a short film behind the picture


@pytest.mark.filterwarnings("ignore:Image appears to be a malformed MPO file")
@pytest.mark.parametrize(("kind", "size"), [("photo", (1600, 1200)), ("panorama", (1600, 800))])
async def test_a_picture_that_tells_everything_is_stored_telling_nothing(
    streets: Any, tmp_path: Path, kind: str, size: tuple[int, int]
) -> None:
    data = tell_tale(*size)
    is_pano = kind == "panorama"
    streets.put("11", lat=50.001, lon=8.0, is_pano=is_pano, width=size[0], height=size[1], data=data)
    settings = CollectSettings(panoramas=is_pano, photos=not is_pano, panorama_width=1024)
    bench = WorkerContext((streets.provider(),), Lake(tmp_path / "lake"), settings)
    (row,) = (await work(PLACE, bench)).rows["images"]
    stored = bench.lake.images.read(row["sha256"], row["extension"])
    assert SECRET in data and WIDE[:20] in data
    assert not any(
        part in stored for part in (SECRET, SECRET[:8], WIDE[:20], b"Exif", b"xmp", b"MPF", b"JFXX", b"mp42")
    )
    assert stored.count(b"\xff\xd8\xff") == 1 and stored.endswith(b"\xff\xd9"), "one picture, and nothing behind it"
    assert markers(stored) <= NEEDED
    picture = Image.open(io.BytesIO(stored))
    assert (picture.format, picture.size) == ("JPEG", (row["width"], row["height"])) and not picture.getexif()
    if kind == "photo":
        assert "icc_profile" not in picture.info
        assert (np.array(picture) == np.array(Image.open(io.BytesIO(data)))).all()
    table = Path(bench.lake.root)
    assert not [path for path in table.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def markers(data: bytes) -> set[int]:
    """Of the segments, up to the end."""
    found, at = set(), 2
    while data[at + 1] != 0xD9:
        found.add(data[at + 1])
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        while data[at] != 0xFF or data[at + 1] == 0 or 0xD0 <= data[at + 1] <= 0xD7:  # the codes of a scan
            at += 1
    return found
