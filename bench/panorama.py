"""A panorama of 5760 x 2880 to 4096 x 2048, JPEG to JPEG: ours, the bare libraries, Pillow.

All on one thread, same quality (92) and subsampling (4:2:0). "Bare" is libjpeg-turbo's decoding and encoding with
OpenCV's resize between them and nothing else: no checks, edges that do not wrap. INTER_AREA is what OpenCV's manual
recommends for shrinking, INTER_LINEAR its default and quickest, "same filter" what geofix does too. Pillow resizes with
LANCZOS, the filter its manual names as the best, and with BOX, its quickest. What counts is processor time, the best of
interleaved repeats: all of them compute and nothing else, so on an idle machine that is the time they take.
"""

import io
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from bench.goals import Goal, judge
from tasks.imaging.panorama import STORED_QUALITY, equirectangular
from tasks.imaging.resample import low_pass

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
    return judge(goals(seconds))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
