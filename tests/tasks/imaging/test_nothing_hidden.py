"""Text put wherever a picture's format has room for it does not survive, and the pixels do."""

import io
import re
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tasks.imaging.decode import BadImage, Encoded
from tasks.imaging.metadata import cleaned

SECRET = b"SecretGPS48.8566,2.3522"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def scene(mode: str, width: int = 90, height: int = 61) -> Image.Image:
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 2) % 256
    shown = Image.fromarray(np.dstack([ramp, ramp[::-1], 255 - ramp]).astype(np.uint8))
    if mode == "I;16":
        return Image.fromarray(np.array(shown.convert("L")).astype(np.uint16) * 200)
    if mode == "P":
        return shown.quantize(23)
    made = shown.convert(mode)
    if mode in ("RGBA", "LA"):
        made.putalpha(Image.fromarray(ramp.astype(np.uint8)))
    return made


def saved(mode: str, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    scene(mode).save(out, kind, **options)
    return out.getvalue()


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


ODD_TABLE = [[1 + (n * 7 + k) % 90 for n in range(64)] for k in (0, 1)]
JPEGS = {
    "grey": saved("L", "JPEG"),
    "colour": saved("RGB", "JPEG", quality=92),
    "full colour": saved("RGB", "JPEG", subsampling=0),
    "wide colour": saved("RGB", "JPEG", subsampling=1),
    "optimized": saved("RGB", "JPEG", optimize=True),
    "progressive": saved("RGB", "JPEG", progressive=True),
    "grey progressive": saved("L", "JPEG", progressive=True),
    "restarts": saved("RGB", "JPEG", restart_marker_blocks=3),
    "progressive restarts": saved("RGB", "JPEG", progressive=True, restart_marker_rows=1),
    "own tables": saved("RGB", "JPEG", qtables=ODD_TABLE),
    "coarse": saved("RGB", "JPEG", quality=2),  # tables of 16 bits
    "print colours": saved("CMYK", "JPEG"),
    "uncoded colours": saved("RGB", "JPEG", keep_rgb=True),
}
PNGS = {
    **{mode: saved(mode, "PNG") for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "I;16")},
    "few bits": saved("P", "PNG", bits=8),
    "clear colour": saved("RGB", "PNG", transparency=(0, 180, 255)),
    "clear grey": saved("L", "PNG", transparency=7),
    "clear palette": saved("P", "PNG", transparency=bytes(range(0, 230, 10))),
}


def boundaries(data: bytes) -> Iterator[int]:
    """Where segments of a JPEG begin, scans among them, and where it ends."""
    at = 2
    while data[at + 1] != 0xD9:
        yield at
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at] != 0xFF:
            at = next(n for n in range(at, len(data)) if data[n] == 0xFF and data[n + 1] not in (0, *range(0xD0, 0xD8)))
    yield at


def told_in_a_jpeg() -> dict[str, bytes]:
    text = (SECRET * 9)[:64]
    counts = bytes([0, 1, 2, 3, 4, 5, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    return {
        **{f"application {n}": segment(0xE0 + n, SECRET) for n in range(16)},
        "comment": segment(0xFE, SECRET),
        "jfif": segment(0xE0, b"JFIF\0" + SECRET[:9]),
        "jfif with more": segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\x02\x03" + SECRET[:18]),
        "icc": segment(0xE2, b"ICC_PROFILE\0\x01\x01" + SECRET),
        "quantization that nobody uses": segment(0xDB, b"\x03" + text),
        "wide quantization that nobody uses": segment(0xDB, b"\x13" + text + text),
        "codes that nobody uses": segment(0xC4, b"\x13" + counts + SECRET),
        "first codes that nobody uses": segment(
            0xC4, b"\x03" + bytes([0, 1, 2, 3, *[0] * 12]) + bytes([1, 2, 3, 4, 5, 6])
        ),
        "number of lines": segment(0xDC, SECRET),
        "fill": b"\xff\xff\xff",
    }


def told_in_a_png() -> dict[str, bytes]:
    names = (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"tIME", b"pHYs", b"bKGD", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"hIST",
             b"sPLT", b"iCCP", b"seCr", b"dSIG", b"oFFs", b"pCAL", b"sCAL", b"gIFx", b"caBX")  # fmt: skip
    sizes = {b"pHYs": 9, b"tIME": 7, b"gAMA": 4, b"cHRM": 32, b"sBIT": 3, b"bKGD": 6}
    right = {f"{name!r} of its size": chunk(name, (SECRET * 2)[:size]) for name, size in sizes.items()}
    return {**{str(name): chunk(name, SECRET * 2) for name in names}, **right}


JPEG_TEXTS, PNG_TEXTS = told_in_a_jpeg(), told_in_a_png()


def told(data: bytes) -> list[bytes]:
    """What is left of the text: any four characters of it, as it is or in a part that unpacks."""
    pieces = [SECRET[at : at + 4] for at in range(len(SECRET) - 3)]
    texts = [data]
    for at in range(len(data) - 1):
        if data[at] == 0x78 and int.from_bytes(data[at : at + 2], "big") % 31 == 0:
            try:
                texts.append(zlib.decompressobj().decompress(data[at:], 100_000))
            except zlib.error:
                continue
    return [piece for text in texts for piece in pieces if piece in text]


def same_picture(one: bytes, other: bytes) -> bool:
    shown = [Encoded.open(data).pixels() for data in (one, other)]
    return shown[0].shape == shown[1].shape and bool((shown[0] == shown[1]).all())


@pytest.mark.parametrize("kind", JPEGS)
@settings(max_examples=25)
@given(data=st.data())
def test_no_text_survives_in_a_jpeg(kind: str, data: st.DataObject) -> None:
    plain = JPEGS[kind]
    assert not told(plain)
    places = list(boundaries(plain))
    laden = plain
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(places), st.sampled_from(sorted(JPEG_TEXTS))), max_size=5))
    for at, name in sorted(chosen, reverse=True):
        first = plain.index(b"\xff\xda")
        if name.startswith(("jfif", "application 14")) and kind != "grey":
            continue  # these say how colours are coded: another picture
        if "number of lines" in name and at <= first:
            continue  # before the pixels it stops every decoder
        laden = laden[:at] + JPEG_TEXTS[name] + laden[at:]
    laden += data.draw(st.sampled_from([b"", SECRET, plain + SECRET]))
    clean, facts = cleaned(laden)
    assert told(clean) == [] and (facts.width, facts.height) == (90, 61)
    assert cleaned(clean)[0] == clean
    if kind == "print colours":  # drawn anew as RGB
        assert clean == cleaned(plain)[0]
        return
    assert same_picture(clean, plain)
    scans = plain[plain.index(b"\xff\xda") :]
    unfilled = re.sub(rb"\xff{2,}", b"\xff", clean)  # fill bytes before a marker between two scans may stay
    assert len(clean) <= len(plain) + 64 and scans[14:200] in unfilled, "the coded pixels are the same bytes"


def with_longer(data: bytes, marker: int, text: bytes) -> bytes:
    at = data.index(bytes([0xFF, marker]))
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:at] + segment(marker, data[at + 4 : end] + text) + data[end:]


@pytest.mark.parametrize("kind", ["grey", "colour", "progressive"])
def test_headers_with_more_in_them_than_they_have_are_no_picture(kind: str) -> None:
    plain, frame = JPEGS[kind], 0xC2 if kind == "progressive" else 0xC0
    scan = plain.index(b"\xff\xda")
    start = plain.index(bytes([0xFF, frame]))
    own = plain[start : start + 2 + int.from_bytes(plain[start + 2 : start + 4], "big")]
    unknown = plain[: scan + 5] + b"\x77" + plain[scan + 6 :]
    longer = [with_longer(plain, marker, SECRET) for marker in (frame, 0xDA)]
    for laden in (*longer, unknown, plain[:scan] + own + plain[scan:]):
        with pytest.raises(BadImage):
            cleaned(laden)


@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_arithmetic_codes_are_drawn_anew(kind: str) -> None:
    """libjpeg reads them, most programs do not."""
    laden = JPEGS[kind].replace(b"\xff\xc0", b"\xff\xc9", 1)
    clean, _ = cleaned(laden)
    assert b"\xff\xc9" not in clean and cleaned(clean)[0] == clean


@pytest.mark.parametrize("kind", PNGS)
@settings(max_examples=25)
@given(data=st.data())
def test_no_text_survives_in_a_png(kind: str, data: st.DataObject) -> None:
    plain = PNGS[kind]
    assert not told(plain)
    first, end = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    names = st.lists(st.sampled_from(sorted(PNG_TEXTS)), max_size=5, unique=True)
    before, behind = (b"".join(PNG_TEXTS[name] for name in data.draw(names)) for _ in range(2))
    ending = data.draw(st.sampled_from([chunk(b"IEND", b""), chunk(b"IEND", SECRET), chunk(b"IEND", b"") + SECRET]))
    pixels = plain[first:end]
    if data.draw(st.booleans()):
        pixels += chunk(b"IDAT", SECRET)
    at = data.draw(st.sampled_from([33, first]))
    laden = plain[:at] + before + plain[at:first] + pixels + behind + ending
    clean, _ = cleaned(laden)
    assert told(clean) == []
    assert same_picture(clean, plain if Encoded.open(plain).eight_bit_rgb else cleaned(plain)[0])
    assert cleaned(clean)[0] == clean


def test_colours_that_no_pixel_has_say_nothing() -> None:
    plain = saved("P", "PNG")
    at = plain.index(b"PLTE")
    size = int.from_bytes(plain[at - 4 : at], "big")
    colours = plain[at + 4 : at + 4 + size]
    more = (colours + SECRET * 40)[:768]
    laden = (
        plain[: at - 4] + chunk(b"PLTE", more) + chunk(b"tRNS", b"\xff" * (size // 3) + SECRET) + plain[at + 8 + size :]
    )
    clean, _ = cleaned(laden)
    assert told(laden) and told(clean) == [] and cleaned(clean)[0] == clean
    shown = [np.array(Image.open(io.BytesIO(data)).convert("RGB")) for data in (plain, clean)]
    assert (shown[0] == shown[1]).all()


@pytest.mark.parametrize("colour_type", [2, 6])
def test_a_palette_for_other_screens_says_nothing(colour_type: int) -> None:
    plain = PNGS["RGB" if colour_type == 2 else "RGBA"]
    clean, _ = cleaned(plain[:33] + chunk(b"PLTE", (SECRET * 9)[:48]) + plain[33:])
    assert told(clean) == [] and same_picture(clean, plain)
