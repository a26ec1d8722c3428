"""One look at a picture: its scene and its writing, remembered by the picture's sha256."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from infra.offline.chat.landmark import named_landmark, tower_ahead
from infra.offline.chat.picture import Picture, is_panorama
from infra.offline.chat.reading import READABLE_SCORE, TextLine, read_text
from infra.offline.chat.scene import Scene, survey

REMEMBERED = 4096


@dataclass(frozen=True)
class Look:
    """What the eyes deliver: pixels measured, lines read. All boxes are in pixels of the picture as sent."""

    width: int
    height: int
    scene: Scene
    lines: tuple[TextLine, ...]

    @property
    def readable(self) -> tuple[TextLine, ...]:
        return tuple(line for line in self.lines if line.score >= READABLE_SCORE and len(line.text) >= 2)


class _Memory:
    """Looks by picture, least recently used forgotten; two askers of one picture share one look."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.looks: OrderedDict[str, Look] = OrderedDict()
        self.busy: dict[str, threading.Event] = {}
        self.lock = threading.Lock()

    def get(self, picture: Picture) -> Look:
        while True:
            with self.lock:
                if picture.sha256 in self.looks:
                    self.looks.move_to_end(picture.sha256)
                    return self.looks[picture.sha256]
                waiting = self.busy.get(picture.sha256)
                if waiting is None:
                    self.busy[picture.sha256] = threading.Event()
                    break
            waiting.wait()
        try:
            seen = _look(picture)
            with self.lock:
                self.looks[picture.sha256] = seen
                while len(self.looks) > self.size:
                    self.looks.popitem(last=False)
            return seen
        finally:
            with self.lock:
                self.busy.pop(picture.sha256).set()


_memory = _Memory(REMEMBERED)


def look(picture: Picture) -> Look:
    """The look at a picture; the first takes about a second, the next are free."""
    return _memory.get(picture)


def _look(picture: Picture) -> Look:
    image = picture.rgb()
    scene, lines = survey(image), tuple(read_text(image))
    clear = [line for line in lines if line.score >= READABLE_SCORE]
    tower = tower_ahead(image, is_panorama(*image.size))
    landmark = named_landmark(line.text for line in clear) or tower
    return Look(image.width, image.height, replace(scene, landmark=landmark, sign=_sign_colour(image, clear)), lines)


def _sign_colour(image: Image.Image, lines: list[TextLine]) -> str | None:
    """The background of the first direction sign: a name followed by a distance."""
    for line in lines:
        if re.fullmatch(r"\D{3,}\s*\d{1,3}(?:\s*km)?", line.text):
            patch = np.asarray(image.crop(line.box), dtype=np.float32).reshape(-1, 3)
            light = patch.sum(axis=1)
            # Letters cover less than half of the box: the commoner half is the board.
            board = np.median(patch, axis=0) if np.ptp(light) > 90 else patch.mean(axis=0)
            return _colour_name(board)
    return None


def _colour_name(colour: np.ndarray) -> str | None:
    red, green, blue = (float(part) for part in colour)
    if min(red, green, blue) > 185:
        return "white"
    if red > 150 and green > 120 and blue < 0.55 * red:
        return "yellow"
    if green > red + 30 and green >= blue:
        return "green"
    return "blue" if blue > red + 40 else None
