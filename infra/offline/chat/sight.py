"""One look at a picture: its scene, and its writing by OCR, remembered by the picture's sha256."""

import os
import re
import sys
import threading
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray
from PIL import Image

from infra.offline.chat.protocol import Picture, is_panorama
from infra.offline.chat.scene import Scene, measure_scene, named_landmark, pick, tower_ahead

# Detection cost grows with pixels: half a megapixel takes about a quarter of a second on one core.
DETECT_PIXELS = 460_000
# Below this the recogniser is guessing; the glyphs may be of a script it was not trained on.
READABLE_SCORE = 0.55
BAND = (0.335, 0.565)  # of a panorama's height: from 30 degrees above the horizon to 12 below
LINE_HEIGHT_PX = 48
MAX_LINES = 24
THREADS = 1  # of one look; several looks go on side by side
REMEMBERED = 4096


@dataclass(frozen=True)
class TextLine:
    """One line of scene text; the box is left, top, right, bottom in pixels of the picture as sent."""

    text: str  # empty where it could not be read, or a reading of it stands elsewhere
    score: float = 0.95
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    zoomed: bool = False

    @property
    def height(self) -> int:
        return self.box[3] - self.box[1]


class _Eyes:
    """A detector and a recogniser, for one look at a time."""

    def __init__(self) -> None:
        # This server reaches no other host. ONNX Runtime would report each session to its makers, and OpenVINO its
        # import, from a process forked for it, which beside threads may never end; without the module it does not.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        from rapidocr import EngineType, RapidOCR
        from rapidocr.ch_ppocr_det import TextDetector
        from rapidocr.ch_ppocr_rec import TextRecognizer

        # OpenVINO finds the same boxes in a third of the time; the recogniser gains nothing from it.
        finder = EngineType.OPENVINO if find_spec("openvino") else EngineType.ONNXRUNTIME
        params = {
            "Global.log_level": "error",
            "Global.use_cls": False,
            "Det.engine_type": finder,
            "EngineConfig.openvino.inference_num_threads": THREADS,
            # Pinned, the one thread of every process takes the same core, and the others of the machine idle.
            "EngineConfig.openvino.enable_cpu_pinning": "NO",
            "EngineConfig.onnxruntime.intra_op_num_threads": THREADS,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            "Det.limit_type": "max",  # never enlarge before detecting: that is where the time goes
            "Det.limit_side_len": 4096,
            "Det.box_thresh": 0.45,
        }
        config = RapidOCR(params=params).cfg
        for part in (config.Det, config.Rec):
            part.engine_cfg = config.EngineConfig[part.engine_type.value]
            part.model_root_dir = config.Global.model_root_dir
        config.Rec.font_path = config.Global.font_path
        self.detector, self.recogniser = TextDetector(config.Det), TextRecognizer(config.Rec)


_of_thread = threading.local()  # eyes are loaded when a thread first needs them; few threads compute
_opened: list["_Eyes"] = []  # for ever: a forked process would end those of threads it lacks, and wait for them
_loading = threading.Lock()  # native libraries that two threads load at once may wait for each other


def _eyes() -> _Eyes:
    with _loading:
        if not hasattr(_of_thread, "eyes"):
            _of_thread.eyes = _Eyes()
            _opened.append(_of_thread.eyes)
    eyes: _Eyes = _of_thread.eyes
    return eyes


def read_text(image: Image.Image) -> list[TextLine]:
    """Lines of text, largest first: found on a reduced copy, read from the full picture."""
    # The models were trained on BGR. In one piece: every strip cut from a reversed view would copy the whole picture.
    full = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
    top, bottom = sign_rows(full)
    high, wide = full[top:bottom].shape[:2]
    if min(high, wide) < 8:
        return []
    # A small picture is enlarged up to twice: letters under 10 px are not found otherwise.
    scale = min(2.0, (DETECT_PIXELS / (high * wide)) ** 0.5)
    size = (max(32, round(wide * scale)), max(32, round(high * scale)))
    shrink = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    small = np.ascontiguousarray(cv2.resize(full[top:bottom], size, interpolation=shrink), dtype=np.uint8)
    eyes = _eyes()
    boxes = eyes.detector(small).boxes
    found: Any = [] if boxes is None else boxes
    quads = [np.asarray(quad, np.float64) * (wide / size[0], high / size[1]) + (0, top) for quad in found]
    # A line of text lies; windows and doors, which fool the detector, stand upright.
    quads = [quad for quad in quads if max(_side(quad, 0), _side(quad, 2)) > 1.15 * _side(quad, 3)]
    quads = sorted(quads, key=lambda quad: _side(quad, 3), reverse=True)[:MAX_LINES]
    return _recognise(eyes, full, quads) if quads else []


def sign_rows(pixels: NDArray[np.uint8]) -> tuple[int, int]:
    """The rows worth reading: of a panorama the band around the horizon where signs hang.

    Of another picture those between which there are edges sharp enough to be letters, without sky and empty road.
    """
    height, width = pixels.shape[:2]
    if is_panorama(width, height):
        return int(height * BAND[0]), int(height * BAND[1])
    step = max(1, min(height, width) // 400)
    grey = pixels[::step, ::step].mean(axis=2)
    rows = np.flatnonzero((np.abs(np.diff(grey, axis=1)) > 40).mean(axis=1) > 0.004)
    if not len(rows):
        return 0, height
    margin = height // 40
    return max(0, int(rows[0]) * step - margin), min(height, (int(rows[-1]) + 1) * step + margin)


def _side(quad: NDArray[np.float64], corner: int) -> float:
    """How long the side of a box is that starts at a corner; corners go round from the top left."""
    return float(np.hypot(*(quad[(corner + 1) % 4] - quad[corner])))


def _recognise(eyes: _Eyes, full: NDArray[np.uint8], quads: list[NDArray[np.float64]]) -> list[TextLine]:
    from rapidocr.ch_ppocr_rec import TextRecInput

    crops = [_straighten(full, quad) for quad in quads]
    result = eyes.recogniser(TextRecInput(img=crops, return_word_box=False))
    height, width = full.shape[:2]
    lines = []
    for quad, text, score in zip(quads, result.txts or (), result.scores or (), strict=False):
        left, top = np.clip(np.floor(quad.min(axis=0)), 0, (width - 1, height - 1))
        right, bottom = np.clip(np.ceil(quad.max(axis=0)), 1, (width, height))
        lines.append(TextLine(str(text).strip(), float(score), (int(left), int(top), int(right), int(bottom))))
    return lines


def _straighten(full: NDArray[np.uint8], quad: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The quadrilateral as an upright strip of the recogniser's height."""
    width, height = (max(_side(quad, corner), _side(quad, corner + 2), 4.0) for corner in (0, 1))
    out_width = int(np.clip(width * LINE_HEIGHT_PX / height, 16, 1600))
    target = np.array([[0, 0], [out_width, 0], [out_width, LINE_HEIGHT_PX], [0, LINE_HEIGHT_PX]], dtype=np.float32)
    matrix = cv2.getPerspectiveTransform(quad.astype(np.float32), target)
    strip = cv2.warpPerspective(full, matrix, (out_width, LINE_HEIGHT_PX), flags=cv2.INTER_CUBIC)
    return np.asarray(strip, dtype=np.uint8)


@dataclass(frozen=True)
class SeenPicture:
    """What the eyes deliver: pixels measured, lines read. All boxes are in pixels of the picture as sent."""

    width: int
    height: int
    scene: Scene
    lines: tuple[TextLine, ...]

    @property
    def readable(self) -> tuple[TextLine, ...]:
        return tuple(line for line in self.lines if line.score >= READABLE_SCORE and len(line.text) >= 2)


@cached(LRUCache(REMEMBERED), key=lambda picture: picture.sha256, condition=threading.Condition())
def look_at_picture(picture: Picture) -> SeenPicture:
    """The look at a picture; the first takes about a second, the next are free."""
    image = picture.rgb()
    lines = tuple(read_text(image))
    clear = [line for line in lines if line.score >= READABLE_SCORE]
    landmark = named_landmark(line.text for line in clear) or tower_ahead(image, is_panorama(*image.size))
    scene = replace(measure_scene(image), landmark=landmark, sign=_sign_colour(image, clear))
    return SeenPicture(image.width, image.height, scene, lines)


def _sign_colour(image: Image.Image, lines: list[TextLine]) -> str | None:
    """The background of the first direction sign: a name followed by a distance."""
    sign = next((line for line in lines if re.fullmatch(r"\D{3,}\s*\d{1,3}(?:\s*km)?", line.text)), None)
    if sign is None:
        return None
    patch = np.asarray(image.crop(sign.box), dtype=np.float32).reshape(-1, 3)
    # Letters cover less than half of the box: the commoner half is the board.
    board = np.median(patch, axis=0) if np.ptp(patch.sum(axis=1)) > 90 else patch.mean(axis=0)
    red, green, blue = (float(part) for part in board)
    cases = {
        "white": min(red, green, blue) > 185,
        "yellow": red > 150 and green > 120 and blue < 0.55 * red,
        "green": green > red + 30 and green >= blue,
        "blue": blue > red + 40,
    }
    return pick(cases)
