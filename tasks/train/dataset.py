"""Pictures and texts of samples, opened when they are needed."""

import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from PIL import Image

from tasks.imaging.images import model_view
from tasks.lake.image_store import ImageStore

CACHE_BYTES = 256 * 1024 * 1024
Out = TypeVar("Out")


class Pictures:
    """Opens the pictures that messages name, within a pixel budget; small ones are kept in memory."""

    def __init__(self, store: ImageStore, min_pixels: int, max_pixels: int) -> None:
        self._store = store
        self._min_pixels = min_pixels
        self._max_pixels = max_pixels
        self.open = functools.lru_cache(maxsize=CACHE_BYTES // (3 * max_pixels))(self._open)

    def _open(self, sha256: str, extension: str) -> Image.Image:
        view, _ = model_view(self._store.read(sha256, extension), self._max_pixels, self._min_pixels)
        picture = Image.open(io.BytesIO(view))
        picture.load()
        return picture


def texts_of(messages_json: str) -> list[str]:
    """Every piece of text in stored messages, for a tokenizer to learn from."""
    found: list[str] = []
    for message in json.loads(messages_json):
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        found += [part["text"] for part in parts if part["type"] == "text"]
    return found


class Ahead(Generic[Out]):
    """What `make` gives for batches of keys: threads make the next batches while the caller works on one."""

    def __init__(self, make: Callable[[int], Out], threads: int, keep: int = 0) -> None:
        self._make = functools.lru_cache(maxsize=keep)(make) if keep else make
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="samples") if threads else None

    def batches(self, batches: Iterable[Sequence[int]], ahead: int = 2) -> Iterator[list[Out]]:
        """The batches in order; an error of `make` is raised where its batch is due."""
        if self._pool is None:
            for batch in batches:
                yield [self._make(key) for key in batch]
            return
        queue: list[list[Future[Out]]] = []
        for batch in batches:
            queue.append([self._pool.submit(self._make, key) for key in batch])
            if len(queue) > ahead:
                yield [one.result() for one in queue.pop(0)]
        for waiting in queue:
            yield [one.result() for one in waiting]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
