"""Published pictures tell nothing of their maker, and show the same."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps

from tasks.imaging.colour_profile import as_srgb
from tasks.imaging.decode import inspect
from tasks.imaging.metadata import cleaned

SECRET = b"SecretOfTheMaker"


def strip_exif(data: bytes) -> bytes:
    return cleaned(data)[0]


def picture(width: int = 80, height: int = 48) -> Image.Image:
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 2) % 256
    return Image.fromarray(np.dstack([ramp, ramp[::-1], 255 - ramp]).astype(np.uint8))


def encoded(kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture().save(out, kind, **options)
    return out.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)))


def profile(text: str = SECRET.decode()) -> bytes:
    """sRGB with the maker's name in it."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = int.from_bytes(data[128:132], "big")
    for at in range(132, 132 + 12 * count, 12):
        name, start, size = struct.unpack(">4sII", data[at : at + 12])
        if name in (b"desc", b"cprt"):
            words = text.encode("utf-16-be")[: size - 28]
            data[start + 28 : start + 28 + len(words)] = words
    data[48:56] = b"SecretOf"  # maker and model of the device
    data[80:84] = b"Secr"
    return bytes(data)


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def exif() -> bytes:
    tags = Image.Exif()
    tags[0x010F] = SECRET.decode()  # maker
    tags.get_ifd(0x8825)[1] = "N"
    tags.get_ifd(0x8825)[29] = SECRET.decode()  # GPS date
    tags.get_ifd(0x8769)[0x927C] = SECRET  # MakerNote
    return b"Exif\0\0" + tags.tobytes()


JPEG_SEGMENTS = {
    "exif": segment(0xE1, exif()),
    "xmp": segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta>" + SECRET + b"</x:xmpmeta>"),
    "iptc": segment(0xED, b"Photoshop 3.0\0" + SECRET),
    "comment": segment(0xFE, SECRET),
    "icc": segment(0xE2, b"ICC_PROFILE\0\x01\x01" + profile()),
    "multi-picture": segment(0xE2, b"MPF\0" + SECRET),
    "flir": segment(0xE1, b"FLIR\0" + SECRET),
    "thumbnail": segment(0xE0, b"JFXX\0\x10" + SECRET),
    "jfif thumbnail": segment(0xE0, b"JFIF\0\x01\x02\0\0\x01\0\x01\x06\x01" + SECRET + b"\0\0"),
    "adobe": segment(0xEE, b"Adobe\0\x64\0\0\0\0\x01" + SECRET),
    "private": segment(0xEF, SECRET),
    "fill bytes": b"\xff\xff\xff",
}
PNG_CHUNKS = {
    "text": chunk(b"tEXt", b"Author\0" + SECRET),
    "packed text": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(SECRET)),
    "international text": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + SECRET),
    "exif": chunk(b"eXIf", exif()[6:]),
    "time": chunk(b"tIME", bytes([7, 230, 1, 2, 3, 4, 5])),
    "icc": chunk(b"iCCP", SECRET + b"\0\0" + zlib.compress(profile())),
    "private": chunk(b"seCr", SECRET),
    "histogram": chunk(b"sPLT", SECRET + b"\0\x08"),
}


def secrets_in(data: bytes) -> list[bytes]:
    """In the bytes as they are, and in every part that unpacks."""
    found = [part for part in (SECRET, SECRET.decode().encode("utf-16-be"), b"SecretOf", b"Secr") if part in data]
    for at in range(len(data)):
        if data[at] == 0x78 and at + 1 < len(data) and (data[at] * 256 + data[at + 1]) % 31 == 0:
            try:
                text = zlib.decompressobj().decompress(data[at:], 100_000)
            except zlib.error:
                continue
            found += [part for part in (SECRET, SECRET.decode().encode("utf-16-be")) if part in text]
    return found


@pytest.mark.filterwarnings("ignore:Image appears to be a malformed MPO file")
@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(JPEG_SEGMENTS)), max_size=6, unique=True),
    st.booleans(),
    st.sampled_from([b"", SECRET, b"\xff\xd8" + SECRET, b"\xff\xe1\0\x30" + SECRET]),
)
def test_nothing_but_the_picture_is_left_of_a_jpeg(names: list[str], progressive: bool, trailer: bytes) -> None:
    plain = encoded("JPEG", progressive=progressive, quality=90)
    data = plain[:2] + b"".join(JPEG_SEGMENTS[name] for name in names) + plain[2:] + trailer
    stripped = strip_exif(data)
    assert secrets_in(stripped) == []
    assert (pixels(stripped) == pixels(data)).all()
    assert strip_exif(stripped) == stripped
    assert not Image.open(io.BytesIO(stripped)).getexif()
    assert "icc_profile" not in Image.open(io.BytesIO(stripped)).info
    assert len(stripped) <= len(data)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(PNG_CHUNKS)), max_size=6, unique=True),
    st.lists(st.sampled_from(["text", "private", "international text"]), max_size=2, unique=True),
    st.sampled_from([b"", SECRET, chunk(b"tEXt", b"Author\0" + SECRET)]),
)
def test_nothing_but_the_picture_is_left_of_a_png(names: list[str], after: list[str], trailer: bytes) -> None:
    plain = encoded("PNG")
    end = plain.index(b"IEND") - 4
    front, back = b"".join(PNG_CHUNKS[n] for n in names), b"".join(PNG_CHUNKS[n] for n in after)
    data = plain[:33] + front + plain[33:end] + back + plain[end:] + trailer
    stripped = strip_exif(data)
    assert secrets_in(stripped) == []
    assert (pixels(stripped) == pixels(data)).all()
    assert strip_exif(stripped) == stripped
    assert "icc_profile" not in Image.open(io.BytesIO(stripped)).info


@pytest.mark.parametrize("where", ["before the end", "between segments"])
def test_bytes_hidden_where_no_decoder_looks_are_gone(where: str) -> None:
    plain = encoded("JPEG", quality=95)
    at = len(plain) - 2 if where == "before the end" else plain.index(b"\xff\xdb")
    stripped = strip_exif(plain[:at] + SECRET * 5 + plain[at:])
    assert secrets_in(stripped) == []
    assert np.abs(pixels(stripped).astype(int) - pixels(plain)).mean() < 2


@pytest.mark.parametrize("progressive", [False, True])
def test_a_number_of_lines_that_says_more_is_gone(progressive: bool) -> None:
    plain = encoded("JPEG", progressive=progressive)
    stripped = strip_exif(plain[:-2] + segment(0xDC, SECRET) + plain[-2:])
    assert secrets_in(stripped) == [] and (pixels(stripped) == pixels(plain)).all()


def packed(plain: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands before, in and behind the pixels of a PNG."""
    begin, end = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    return plain[:begin], plain[begin + 8 : end - 4], plain[end:]


@pytest.mark.parametrize("where", ["behind the stream", "in another part", "in the stream", "in the end", "bad sum"])
@pytest.mark.parametrize("size", [(80, 48), (5, 3)])
def test_bytes_behind_the_pixels_of_a_png_are_gone(where: str, size: tuple[int, int]) -> None:
    out = io.BytesIO()
    picture(*size).save(out, "PNG")
    before, body, end = packed(out.getvalue())
    bodies = {
        "behind the stream": chunk(b"IDAT", body + SECRET) + end,
        "in another part": chunk(b"IDAT", body) + chunk(b"IDAT", SECRET) + end,
        "in the stream": chunk(b"IDAT", zlib.compress(zlib.decompress(body) + SECRET * 9, 0)) + end,
        "in the end": chunk(b"IDAT", body) + chunk(b"IEND", SECRET),
        "bad sum": chunk(b"IDAT", zlib.compress(zlib.decompress(body) + SECRET * 9, 0)[:-4] + SECRET) + end,
    }
    stripped = strip_exif(before + bodies[where])
    assert secrets_in(stripped) == [] and (pixels(stripped) == pixels(out.getvalue())).all()
    assert strip_exif(stripped) == stripped


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
@settings(max_examples=12, deadline=None)
@given(width=st.integers(1, 19), height=st.integers(1, 19), interlaced=st.booleans())
def test_every_kind_of_png_stays_as_it_was(mode: str, width: int, height: int, interlaced: bool) -> None:
    options = {"bits": 4} if mode == "P" else {}
    shown = picture(width, height).convert(mode)
    out = io.BytesIO()
    shown.save(out, "PNG", **options)
    plain = _interlaced(out.getvalue(), width, height) if interlaced and mode == "RGB" else out.getvalue()
    stripped = strip_exif(plain)
    with_alpha = Image.open(io.BytesIO(plain)).convert("RGBA")
    on_white = Image.alpha_composite(Image.new("RGBA", with_alpha.size, "white"), with_alpha).convert("RGB")
    assert (np.array(Image.open(io.BytesIO(stripped))) == np.array(on_white)).all()
    assert strip_exif(stripped) == stripped


def _interlaced(plain: bytes, width: int, height: int) -> bytes:
    """The same picture, its pixels in seven passes; Pillow writes none such."""
    shown = pixels(plain)
    rows = b""
    for x, y, dx, dy in (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ):
        part = shown[y::dy, x::dx]
        rows += b"".join(b"\0" + row.tobytes() for row in part) if part.size else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    made = plain[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert (pixels(made) == shown).all()
    return made


@pytest.mark.parametrize("name", [b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD", b"pHYs", b"tRNS", b"PLTE", b"hIST"])
def test_parts_of_a_png_with_more_in_them_than_they_have_are_gone(name: bytes) -> None:
    plain = encoded("PNG")
    assert strip_exif(plain[:33] + chunk(name, SECRET * 3) + plain[33:]) == plain


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [3, 6])
def test_a_turned_picture_is_upright(kind: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[0x0112], tags[0x010F] = orientation, SECRET.decode()
    data = encoded(kind, exif=tags, icc_profile=profile())
    stripped, facts = cleaned(data)
    assert secrets_in(stripped) == []
    upright = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert np.abs(pixels(stripped).astype(int) - upright).mean() < 3
    assert facts == inspect(stripped)
    assert "icc_profile" not in Image.open(io.BytesIO(stripped)).info


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 500), noise=st.binary(max_size=400), spans=st.booleans())
def test_a_damaged_profile_is_dropped(kind: str, at: int, noise: bytes, spans: bool) -> None:
    """Whatever LittleCMS makes of it: the picture is stored, without a profile, and the same the next time."""
    whole = profile()
    damaged = whole[:at] + noise + whole[at + len(noise) :] + (bytes(140_000) if spans else b"")
    stripped = strip_exif(encoded(kind, icc_profile=damaged))
    assert secrets_in(stripped) == [] and "icc_profile" not in Image.open(io.BytesIO(stripped)).info
    assert strip_exif(stripped) == stripped
    shown = pixels(encoded("PNG"))
    assert as_srgb(shown, noise) is shown
