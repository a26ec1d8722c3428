"""One look at a picture: its scene and its writing, remembered by the picture's sha256."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from infra.offline.chat.picture import Picture
from infra.offline.chat.reading import READABLE_SCORE, TextLine, read_text
from infra.offline.chat.scene import Scene, survey

REMEMBERED = 4096
GLANCE_WIDTH_PX = 1024  # what a weaker model sees of a picture


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
    return Look(image.width, image.height, survey(image), tuple(read_text(image)))
