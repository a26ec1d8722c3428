"""A part of a sphere is refused wherever pictures come in, also where its sides are 2:1."""

import io
import random

import pytest
from PIL import Image, PngImagePlugin

from schemas.settings.collect import CollectSettings
from schemas.settings.ingest import PictureRules
from tasks.collect.download import prepare as collected
from tasks.imaging.decode import BadImage
from tasks.imaging.panorama import equirectangular, refuse_part
from tasks.ingest.photo import Photo
from tasks.ingest.photo import prepare as ingested
from tasks.ingest.refusal import Refusal

SIDES = ("FullPanoWidth", "FullPanoHeight", "CroppedAreaImageWidth", "CroppedAreaImageHeight")


def xmp(*sides: object, projection: str = "equirectangular", elements: bool = False) -> bytes:
    values = {"ProjectionType": projection}
    values |= {f"{name}Pixels": str(side) for name, side in zip(SIDES, sides, strict=False) if side is not None}
    told = [f"<GPano:{k}>{v}</GPano:{k}>" if elements else f'GPano:{k}="{v}"' for k, v in values.items()]
    inner = (
        f"<rdf:Description>{''.join(told)}</rdf:Description>" if elements else f"<rdf:Description {' '.join(told)}/>"
    )
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/">{inner}</x:xmpmeta>'.encode()


def picture(said: bytes, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    small = Image.frombytes("RGB", (8, 4), random.Random(1).randbytes(96)).resize((512, 256))
    if kind == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", said.decode(), zip=True)
        small.save(out, "PNG", pnginfo=text)
    else:
        small.save(out, "JPEG", xmp=said)
    return out.getvalue()


PART = xmp(4096, 2048, 2048, 1024)


@pytest.mark.parametrize(
    "data", [picture(PART), picture(PART, "PNG"), picture(xmp(4096, 2048, 2048, 1024, elements=True))]
)
def test_a_part_of_a_sphere_is_refused_with_its_figures(data: bytes) -> None:
    with pytest.raises(BadImage) as caught:
        refuse_part(data)
    assert caught.value.kind == "not_equirectangular"
    assert "2048 x 1024 of a sphere of 4096 x 2048, 180 x 90 degrees" in caught.value.detail


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        (xmp(), False),
        (xmp(512, 256, 512, 256), False),
        (xmp(8000, 4000, 8000, 4000), False),  # a whole one that was made smaller
        (xmp("8000.0", "4000", "8000", "3999"), False),  # rounded
        (xmp(4096, 2048), False),  # says nothing of a part
        (xmp(None, None, 2048, 1024), False),
        (xmp(0, 0, 0, 0), False),
        (xmp("many", "nan", "2048", "1024"), False),
        (xmp(8000, 4000, 8000, 3000), True),
        (xmp(8000, None, 4000, None), True),
        (xmp(projection=" Cylindrical"), True),
        (b"\xff\xfe GPano:", False),
    ],
)
def test_only_a_clear_word_refuses(said: bytes, refused: bool) -> None:
    try:
        refuse_part(picture(said))
    except BadImage as error:
        assert refused and error.kind == "not_equirectangular"
    else:
        assert not refused


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"no picture", picture(PART, "PNG")[:60]])
def test_what_is_no_picture_is_left_to_whoever_decodes_it(data: bytes) -> None:
    refuse_part(data)


def test_collected_and_ingested_panoramas_are_asked() -> None:
    whole, part = picture(xmp(512, 256, 512, 256)), picture(PART)
    wanted = CollectSettings(panorama_width=512, panorama_min_pixels=1)
    assert collected(whole, "panorama", wanted)[2:] == (512, 256)
    with pytest.raises(BadImage, match="180 x 90 degrees"):
        equirectangular(part, 512, 256, 1)
    with pytest.raises(BadImage, match="180 x 90 degrees"):
        collected(part, "panorama", wanted)
    rules = PictureRules(panorama_width=512, panorama_min_pixels=1)
    for kind in ("panorama", None):
        item = {"lat": 48.85, "lon": 2.35, "kind": kind}
        found = ingested(whole, item, rules)
        assert isinstance(found, Photo) and found.kind == "panorama"
        refusal = ingested(part, item, rules)
        assert isinstance(refusal, Refusal) and refusal.reason == "not_equirectangular"
        assert "180 x 90 degrees" in refusal.problem
