"""What a picture's own metadata says of it: position, time, direction, orientation, projection.

Metadata from outside may be damaged in any way. Whatever cannot be read is absent.
"""

import io
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import tzfpy
from PIL import Image

from tasks.geo.distance import is_point
from tasks.imaging.decode import exif_of, png_header
from tasks.imaging.heic import heic_exif, is_heic
from tasks.imaging.panorama import xmp_of, xmp_value

_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_ORIENTATION, _DATETIME, _OFFSET, _WIDTH, _HEIGHT = 0x0112, 0x9003, 0x9011, 0xA002, 0xA003
MOST_FROM_UTC = timedelta(hours=15)  # zones reach from -12 to +14 hours
_NUMBER = re.compile(r"\d{9,10}(?:\.\d+)?|\d{12,13}(?:\.\d+)?")
_CAMERA = re.compile(r"^(\d{4}):(\d{2}):(\d{2})")

# What is wrong with a photo's metadata is our business; Pillow would tell the terminal, once a tag.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")


@dataclass(frozen=True)
class Tags:
    """A picture's metadata, as far as it makes sense."""

    orientation: int | None = None  # 1 to 8
    orientation_invalid: str | None = None  # what stands there instead
    already_turned: bool = False  # the tag says to turn it, but its sizes say that it was turned already
    lat: float | None = None
    lon: float | None = None
    taken_at: datetime | None = None  # where the receiver's clock or the camera's offset from UTC tells it
    taken_local: datetime | None = None  # what the camera's clock showed, without a zone, where nothing else tells
    compass_angle: float | None = None
    magnetic: bool = False  # that angle is from the magnetic pole, some degrees beside the true one
    equirectangular: bool = False  # XMP GPano says so
    unreadable: bool = False


def read_tags(data: bytes) -> Tags:
    """The tags of an encoded picture whose size was found to be sane; no pixel is decoded."""
    try:
        if is_heic(data):
            picture, exif = Image.new("1", (1, 1)), Image.Exif()
            exif.load(heic_exif(data))
        else:
            picture = Image.open(io.BytesIO(png_header(data) or data), formats=["JPEG", "PNG"])
            exif = exif_of(picture)
        main, camera, gps = dict(exif), dict(exif.get_ifd(_EXIF_IFD)), dict(exif.get_ifd(_GPS_IFD))
        xmp = xmp_of(picture)
    except Exception:  # noqa: BLE001 - damaged metadata makes Pillow raise anything, and must not cost the picture
        return Tags(unreadable=True)
    tag = main.get(_ORIENTATION)
    valid = isinstance(tag, int) and 1 <= tag <= 8
    position = _position(gps)
    taken_at, taken_local = _times(camera, gps)
    angle, of_gps = _angle(xmp_value(xmp, b"PoseHeadingDegrees"), _rational(gps.get(17)))
    return Tags(
        orientation=tag if valid else None,
        orientation_invalid=None if valid or tag is None else str(tag)[:20],
        already_turned=isinstance(tag, int) and 5 <= tag <= 8 and _already_turned(picture.size, camera),
        lat=position[0] if position else None,
        lon=position[1] if position else None,
        taken_at=taken_at,
        taken_local=taken_local,
        compass_angle=angle,
        magnetic=of_gps and _letter(gps.get(16)) == "M",
        equirectangular=(xmp_value(xmp, b"ProjectionType") or "").strip().casefold() == "equirectangular",
    )


def _already_turned(size: tuple[int, int], camera: Mapping[int, Any]) -> bool:
    """Whether EXIF remembers the picture's sides the other way round: then it was turned, and the tag forgotten."""
    width, height = camera.get(_WIDTH), camera.get(_HEIGHT)
    return (width, height) == (size[1], size[0]) and width != height


def _position(gps: Mapping[int, Any]) -> tuple[float, float] | None:
    lat, lon = _degrees(gps.get(2), gps.get(1), "S"), _degrees(gps.get(4), gps.get(3), "W")
    if lat is None or lon is None or not is_point(lat, lon) or (lat == 0 and lon == 0):
        return None  # 0, 0 is what a receiver without a fix writes
    return lat, lon


def _degrees(parts: Any, side: Any, negative: str) -> float | None:
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        return None
    degrees, minutes, seconds = (_rational(part) for part in parts)
    if seconds is None and minutes is not None and minutes % 1:
        seconds = 0.0  # 0/0 beside minutes with decimals: there is nothing left for them to say
    if degrees is None or minutes is None or seconds is None or min(degrees, minutes, seconds) < 0:
        return None
    letter = _letter(side)
    if letter not in ("N", "S", "E", "W"):
        return None
    value = degrees + minutes / 60 + seconds / 3600
    return -value if letter == negative else value


def _rational(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _times(camera: Mapping[int, Any], gps: Mapping[int, Any]) -> tuple[datetime | None, datetime | None]:
    """When it was taken in UTC, or else what the camera's clock showed, which is the time of some unknown zone."""
    text, offset = _text(camera.get(_DATETIME)), _text(camera.get(_OFFSET))
    local = read_time(text)
    by_satellite = _satellite_time(gps)
    # A receiver without a fix may write the time of its last one: no zone explains more than some hours between them.
    if by_satellite and (local is None or abs(by_satellite - local) <= MOST_FROM_UTC):
        return by_satellite, None
    if offset and (moment := read_time(text + offset)):
        return moment, None
    return None, local.replace(tzinfo=None) if local else None


def _satellite_time(gps: Mapping[int, Any]) -> datetime | None:
    """The receiver's date and time, which are UTC."""
    day, clock = _text(gps.get(29)), gps.get(7)
    if not isinstance(clock, tuple | list) or len(clock) != 3:
        return None
    hours, minutes, seconds = (_rational(part) for part in clock)
    midnight = read_time(f"{day} 00:00:00")
    if midnight is None or hours is None or minutes is None or not 0 <= hours < 24 or not 0 <= minutes < 60:
        return None
    return midnight + timedelta(hours=hours, minutes=minutes, seconds=min(max(seconds or 0.0, 0.0), 60.0))


def utc_at(local: datetime, lat: float, lon: float) -> datetime | None:
    """A local time in UTC by the time zone of a position; None where the zone is not known."""
    try:
        zone = ZoneInfo(tzfpy.get_tz(lon, lat))
        return local.replace(tzinfo=zone).astimezone(UTC)
    except (ZoneInfoNotFoundError, ValueError, OverflowError):
        return None


def _text(value: Any) -> str:
    return value.strip("\0 ") if isinstance(value, str) else ""


def _angle(xmp: str | None, exif: float | None) -> tuple[float | None, bool]:
    """The direction, and whether it is the one of EXIF's GPS part."""
    pose = _rational(xmp) if xmp is not None else None
    # Cameras that do not know their pose write 0 there, beside a direction in EXIF that they do know.
    of_gps = not pose and exif is not None
    degrees = exif if of_gps else pose
    angle = degrees % 360.0 if degrees is not None and -360 <= degrees <= 360 else None
    return angle, of_gps and angle is not None


def _letter(side: Any) -> str:
    text = side.decode("ascii", "replace") if isinstance(side, bytes) else side if isinstance(side, str) else ""
    return text.strip("\0 ").upper()


def read_time(text: str) -> datetime | None:
    """ISO 8601, a camera's 2019:05:01 12:00:00, or seconds or milliseconds since 1970; None when it is none of them.

    Without a time zone it is taken as UTC. Nothing before photography or after tomorrow's clocks is believed.
    """
    text = text.strip()
    try:
        if _NUMBER.fullmatch(text):
            number = float(text)
            moment = datetime.fromtimestamp(number / 1000 if number > 1e11 else number, UTC)
        else:
            moment = datetime.fromisoformat(_CAMERA.sub(r"\1-\2-\3", text))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if 1826 <= moment.year <= 2100 else None
