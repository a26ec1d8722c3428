"""From a row's bytes to the picture that is stored, or why it is not."""

import contextlib
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from PIL import Image

from schemas.settings.ingest import PictureRules
from tasks.geo.distance import distance_km
from tasks.imaging.decode import BadImage, Encoded, ImageFacts
from tasks.imaging.heic import heic_as_jpeg, heic_size, is_heic
from tasks.imaging.images import equirectangular
from tasks.imaging.metadata import cleaned
from tasks.imaging.panorama import refuse_part
from tasks.imaging.tags import Tags, read_tags, utc_at
from tasks.ingest.refusal import Refusal


@dataclass(frozen=True)
class Photo:
    """A picture ready to be stored: upright, without metadata."""

    data: bytes
    extension: str
    width: int
    height: int
    kind: str
    taken_at: datetime | None
    compass_angle: float | None
    source_sha256: str
    source_bytes: int
    notes: list[str] = field(default_factory=list)


# A file of a megabyte may hold two hundred million pixels, and each costs up to 16 bytes while it is worked on. Of the
# pictures that a process works on at a time, one may be large.
LARGE_PIXELS = 40_000_000
_ONE_LARGE = threading.Lock()


def _decoding(size: tuple[int, int]) -> contextlib.AbstractContextManager[Any]:
    return _ONE_LARGE if size[0] * size[1] > LARGE_PIXELS else contextlib.nullcontext()


def prepare(data: bytes, item: Mapping[str, Any], rules: PictureRules) -> Photo | Refusal:
    """The picture to store for a row, every pixel of which was decoded once. Waits while another large one is."""
    original = data
    try:
        if is_heic(data):
            with _decoding(heic_size(data)):
                data = heic_as_jpeg(data)
        picture = Encoded.open(data)  # before its tags are read: its size may forbid to look any further
        tags = read_tags(data)
        refusal = _refused_for_tags(tags, item, rules)
        if refusal is not None:
            return refusal
        stays = tags.already_turned and rules.orientation == "ignore"
        notes = _notes(tags, stays, item.get("compass_angle") is None)
        kind = _kind(picture, item.get("kind"), tags)
        taken_at = tags.taken_at
        if taken_at is None and (local := tags.taken_local) is not None:
            taken_at = utc_at(local, item["lat"], item["lon"])
            notes += [] if taken_at else ["captured_at_is_local_time"]
            taken_at = taken_at or local.replace(tzinfo=UTC)
        with _decoding((picture.facts.width, picture.facts.height)):
            stored, facts = _stored(data, kind, stays, rules)
    except BadImage as error:
        return _refusal_of(error, data)
    return Photo(
        data=stored,
        extension=facts.extension,
        width=facts.width,
        height=facts.height,
        kind=kind,
        taken_at=taken_at,
        compass_angle=tags.compass_angle,
        source_sha256=hashlib.sha256(original).hexdigest(),
        source_bytes=len(original),
        notes=notes,
    )


def _stored(data: bytes, kind: str, stays: bool, rules: PictureRules) -> tuple[bytes, ImageFacts]:
    if kind == "panorama":
        refuse_part(data)
        width, height = rules.panorama_width, rules.panorama_width // 2
        original = Encoded.open(data)
        is_stored_size = (original.facts.width, original.facts.height, original.facts.format) == (width, height, "JPEG")
        if is_stored_size and original.orientation == 1 and width * height >= rules.panorama_min_pixels:
            return cleaned(data)  # not coded a second time: a published panorama keeps its bytes
        lying = cleaned(data, turn=False)[0] if stays else data
        panorama = equirectangular(lying, width, height, rules.panorama_min_pixels)
        return panorama, ImageFacts(width, height, "JPEG", "jpg")
    stored, facts = cleaned(data, turn=not stays)
    if facts.width * facts.height < rules.min_pixels:
        problem = f"{facts.width} x {facts.height}, at least {rules.min_pixels:,} pixels are needed"
        raise BadImage("too_small", problem)
    return stored, facts


def _refusal_of(error: BadImage, data: bytes) -> Refusal:
    if error.kind == "too_large":
        return Refusal("decompression_bomb", error.detail)
    if error.kind == "not_an_image":
        if not data:
            return Refusal("truncated", "the file is empty")
        if other := _other_format(data):
            return Refusal("unsupported_format", f"{other}; JPEG, PNG and HEIC are taken")
    return Refusal(error.kind, error.detail)


def _other_format(data: bytes) -> str | None:
    """What Pillow takes its first bytes for, without opening it; TIFF stands for cameras' raw formats too."""
    Image.init()
    accepted = ((name, accept(data[:16])) for name, (_, accept) in Image.OPEN.items() if accept)
    return next((name for name, answer in accepted if answer is True), None)


def _refused_for_tags(tags: Tags, item: Mapping[str, Any], rules: PictureRules) -> Refusal | None:
    if tags.already_turned and rules.orientation == "refuse":
        problem = f"EXIF says to turn it (orientation {tags.orientation}), and by its sizes that it was turned already"
        return Refusal("orientation_contradicts", problem)
    if rules.exif_km is None or tags.lat is None or tags.lon is None:
        return None
    away_km = distance_km(item["lat"], item["lon"], tags.lat, tags.lon)
    if away_km <= rules.exif_km:
        return None
    swapped = distance_km(item["lon"], item["lat"], tags.lat, tags.lon) if abs(item["lon"]) <= 90 else away_km
    hint = "; with latitude and longitude exchanged they agree" if swapped <= rules.exif_km else ""
    return Refusal(
        "exif_position_far",
        f"the picture says {tags.lat:.5f}, {tags.lon:.5f}, {away_km:,.1f} km away{hint}",
        column="position",
        given=f"{item['lat']:g}, {item['lon']:g}",
    )


def _notes(tags: Tags, stays: bool, own_angle: bool) -> list[str]:
    is_turned = tags.orientation not in (None, 1) and not stays
    notes = {
        "metadata_unreadable": tags.unreadable,
        f"orientation_invalid: {tags.orientation_invalid}": tags.orientation_invalid is not None,
        f"turned_upright: orientation {tags.orientation}": is_turned,
        "orientation_contradicts": tags.already_turned,
        "compass_angle_magnetic": tags.magnetic and own_angle,
    }
    return [note for note, is_true in notes.items() if is_true]


def _kind(picture: Encoded, declared: str | None, tags: Tags) -> str:
    """Panorama where the row says so; or, where it says nothing, where the picture does and is 2:1."""
    if declared is not None or not tags.equirectangular:
        return declared or "photo"
    lying = picture.as_it_lies().facts
    width, height = lying.width, lying.height
    if abs(width / height - 2.0) > 0.02:
        # Neither a full sphere nor a perspective view: streets are bent in it.
        raise BadImage("not_equirectangular", f"{width} x {height}, a part of an equirectangular panorama")
    return "panorama"
