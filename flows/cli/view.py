"""`geofix view IMAGE_ID`: a perspective view of a panorama, as a picture file and a row of the lake."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.cli.command import DONE, Call, UsageError
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from schemas.errors import GeofixError
from tasks.imaging.perspective import View
from tasks.review.views import cut_view

_ANGLES = ("yaw_deg", "pitch_deg", "roll_deg", "fov_deg", "bearing_deg")
_SHOWN = (*_ANGLES, "width", "height", "sha256", "licence", "attribution")


def view_panorama(
    call: Call,
    image_id: str,
    *,
    yaw: float | None,
    bearing: float | None,
    pitch: float,
    roll: float,
    fov: float,
    size: str,
    output: Path | None,
) -> int:
    """Cut the view, or find it in the lake, and write it to a file."""
    if yaw is not None and bearing is not None:
        raise UsageError("--yaw and --bearing both say where to look; give one of them")
    view = _view(yaw or 0.0, bearing, pitch, roll, fov, size)
    output = output.expanduser() if output else None
    if output and output.suffix.lower() not in (".jpg", ".jpeg"):
        raise UsageError(f"--output {output}: views are JPEG pictures; name the file {output.stem}.jpg")
    lake = existing_lake(call)
    row, is_new = cut_view(lake, image_id, view, bearing)
    output = output or Path(_name(row))
    _write(output, lake.images.read(row["sha256"], row["extension"]))
    path = str(output)
    if call.as_json:
        shown = {name: row[name] for name in ("view_id", "image_id", *_SHOWN)}
        print_json({**shown, "new": is_new, "path": path})
        return DONE
    print(f"view {row['view_id']} of panorama {row['image_id']}" + ("" if is_new else " (cut before)"))
    compass = "" if row["bearing_deg"] is None else f", compass bearing {row['bearing_deg']:.1f}°"
    tipped = f", roll {row['roll_deg']:g}°" if row["roll_deg"] else ""
    print(f"  yaw {row['yaw_deg']:g}°, pitch {row['pitch_deg']:g}°{tipped}, fov {row['fov_deg']:g}°{compass}")
    print(f"  {row['attribution']}")
    print(f"  {row['width']} x {row['height']} in {path}")
    return DONE


def _view(yaw: float, bearing: float | None, pitch: float, roll: float, fov: float, size: str) -> View:
    pixels = re.fullmatch(r"(\d{1,6})[xX×](\d{1,6})", size.strip())
    if not pixels:
        raise UsageError(f"--size {size}: must be WIDTHxHEIGHT in pixels, such as 1024x768")
    try:
        View(yaw_deg=bearing or 0.0)
        return View(yaw, pitch, fov, int(pixels[1]), int(pixels[2]), roll)
    except ValueError as error:
        raise UsageError(f"view: {error}") from error


def _name(row: Mapping[str, Any]) -> str:
    """A file name that says what the view is."""
    angles = f"yaw{row['yaw_deg']:g}-pitch{row['pitch_deg']:g}-fov{row['fov_deg']:g}"
    return f"view-{row['image_id'][:8]}-{angles}-{row['width']}x{row['height']}.jpg"


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # The user knows nothing of the temporary file.
        raise GeofixError(f"--output {path}: cannot be written: {error.strerror or error}") from error
