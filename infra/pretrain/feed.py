"""What the trainer eats: batches of single boards from many processes, and painted pictures from others.

Boards are quick and never repeat. Painted pictures are slow: processes write them to files, the trainer keeps what it
has on its device and draws from it again and again.
"""

from __future__ import annotations

import json
import os
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from infra.offline.place import Place
from infra.offline.world import World
from infra.pretrain.boards import PATCH, crop_board, lesson, pieces_of, readable
from infra.pretrain.pictures import clear_images, example
from infra.pretrain.tokens import Tokens

Grid = tuple[int, int]


@dataclass(frozen=True)
class ReadingBatch:
    """Zoomed signs of one grid: pixels, token ids and labels, and (sample, cell, letter) of every letter."""

    grid: Grid
    level: int
    pixels: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor
    letters: torch.Tensor

    def pin_memory(self) -> ReadingBatch:
        """The batch where the device copies from quickly; the loader calls this."""
        parts = (part.pin_memory() for part in (self.pixels, self.ids, self.labels, self.letters))
        return ReadingBatch(self.grid, self.level, *parts)

    def to(self, device: torch.device) -> ReadingBatch:
        parts = (part.to(device, non_blocking=True) for part in (self.pixels, self.ids, self.labels, self.letters))
        return ReadingBatch(self.grid, self.level, *parts)


class Replay:
    """New batches while there are any; while the painters are behind, earlier ones of the same level again."""

    def __init__(self, source: Iterator[ReadingBatch], device: torch.device, kept: int, seed: int) -> None:
        self._queue: queue.Queue[ReadingBatch] = queue.Queue(6)
        self._device, self._kept, self._rng = device, kept, random.Random(seed)
        self._old: list[ReadingBatch] = []
        self.new = self.again = 0
        threading.Thread(target=self._pull, args=(source,), daemon=True).start()

    def _pull(self, source: Iterator[ReadingBatch]) -> None:
        for batch in source:
            self._queue.put(batch)

    def next(self, level: int) -> tuple[ReadingBatch, bool]:
        """(a batch on the device, whether it is new)."""
        fitting = [batch for batch in self._old if batch.level == level]
        if self._queue.empty() and len(fitting) >= 12:
            self.again += 1
            return self._rng.choice(fitting), False
        batch = self._queue.get().to(self._device)
        self.new += 1
        self._old.append(batch)
        if len(self._old) > self._kept:
            del self._old[0]
        return batch, True


class Boards(torch.utils.data.IterableDataset[ReadingBatch]):
    """Endless batches of single boards at the level that `level` says, a number all processes share."""

    def __init__(
        self,
        places: Sequence[Place],
        letters: str,
        tokens: Tokens,
        backgrounds: Sequence[Image.Image],
        level: torch.Tensor,
        batch: int,
        seed: int,
    ) -> None:
        self.places, self.letters, self.tokens, self.backgrounds = places, letters, tokens, backgrounds
        self.level, self.batch, self.seed = level, batch, seed

    def __iter__(self) -> Iterator[ReadingBatch]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            torch.set_num_threads(1)
        rng = random.Random(f"{self.seed} {worker.id if worker else 0}")
        number = {letter: place for place, letter in enumerate(self.letters)}
        waiting: dict[tuple[Grid, int], list[Any]] = {}
        background = pieces_of(self.backgrounds, rng)

        while True:
            level = int(self.level[0])
            board, line, size = lesson(level, self.places, self.letters, rng)
            crop = crop_board(board, line, size, background, rng)
            rows, columns = crop.grid
            made = self.tokens.reading(rows * columns, crop.line, crop.text)
            if made is None:
                continue
            cells = [
                (
                    min(rows - 1, max(0, int(y // PATCH))) * columns + min(columns - 1, max(0, int(x // PATCH))),
                    number[c],
                )
                for c, (x, y) in zip(crop.text, crop.centres, strict=True)
                if c in number
            ]
            for old in [key for key in waiting if key[1] != level]:
                del waiting[old]
            group = waiting.setdefault((crop.grid, level), [])
            group.append((crop.pixels, *made, cells))
            if len(group) == self.batch:
                del waiting[crop.grid, level]
                yield _reading(crop.grid, level, group)


def _reading(grid: Grid, level: int, group: list[Any]) -> ReadingBatch:
    letters = [(sample, *cell) for sample, drawn in enumerate(group) for cell in drawn[3]]
    return ReadingBatch(
        grid,
        level,
        torch.from_numpy(np.stack([sample[0] for sample in group])),
        torch.from_numpy(np.stack([sample[1] for sample in group])),
        torch.from_numpy(np.stack([sample[2] for sample in group])),
        torch.tensor(letters, dtype=torch.int64).reshape(-1, 3),
    )


def paint_forever(world: World, indices: Sequence[int], seed: int, folder: Path, name: str, each: int) -> None:
    """Paint pictures of these places over and over, other pictures each time, and write them in files of `each`."""
    rng = random.Random(f"{seed} {name}")
    parent, part = os.getppid(), 0
    while True:
        chosen: list[tuple[int, str]] = []
        while len(chosen) < each:
            index = rng.choice(indices)
            records = clear_images(world, index)
            if records:
                record = rng.choice(records)
                chosen.append((index, record.image_id))
        write_shard(world, chosen, rng, folder / f"{name}-{part:04d}", pad=True)
        part += 1
        if os.getppid() != parent:  # the trainer has ended
            return


def write_shard(world: World, chosen: Sequence[tuple[int, str]], rng: random.Random, stem: Path, pad: bool) -> None:
    """Paint these images and write views, zooms and answers; the file appears whole."""
    views: dict[str, list[np.ndarray]] = {}
    zooms: dict[str, list[np.ndarray]] = {}
    facts: dict[str, Any] = {"views": {}, "zooms": {}}
    for index, image_id in chosen:
        record = world.image(image_id)
        assert record is not None
        made = example(world, record, rng, pad)
        key = f"view_{made.grid[0]}x{made.grid[1]}"
        views.setdefault(key, []).append(made.view)
        facts["views"].setdefault(key, []).append(
            {"index": index, "image_id": image_id, "answers": made.answers, "box": made.box}
        )
        for zoom in made.zooms:
            key = f"zoom_{zoom.grid[0]}x{zoom.grid[1]}"
            zooms.setdefault(key, []).append(zoom.pixels)
            facts["zooms"].setdefault(key, []).append(
                {"line": zoom.line, "text": zoom.text, "letters_px": zoom.letters_px, "latin": readable(zoom.text),
                 "index": index}
            )  # fmt: skip
    arrays = {key: np.stack(pixels) for key, pixels in {**views, **zooms}.items()}
    partial = stem.with_suffix(".partial.npz")
    np.savez(partial, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    partial.rename(stem.with_suffix(".npz"))


class Pool:
    """Painted pictures on the trainer's device, by what they are and by grid; grows as files appear."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._read: set[str] = set()
        self.pixels: dict[str, torch.Tensor] = {}
        self.facts: dict[str, list[dict[str, Any]]] = {}
        self._parts: dict[str, list[torch.Tensor]] = {}

    def refresh(self, seconds: float = 1.0) -> int:
        """Read new files for at most n seconds; returns how many pictures there are."""
        until = time.monotonic() + seconds
        for path in sorted(self._folder.glob("*.npz")):
            if path.name in self._read or path.name.endswith(".partial.npz"):
                continue
            self._read.add(path.name)
            with np.load(path) as file:
                facts = json.loads(file["facts"].tobytes())
                for key, listed in {**facts["views"], **facts["zooms"]}.items():
                    self.facts.setdefault(key, []).extend(listed)
                    self._parts.setdefault(key, []).append(torch.from_numpy(file[key]).to(self._device))
            if time.monotonic() > until:
                break
        for key, parts in self._parts.items():
            if parts:
                have = [self.pixels[key]] if key in self.pixels else []
                self.pixels[key] = torch.cat([*have, *parts])
                parts.clear()
        return sum(len(listed) for listed in self.facts.values())

    def keys(self, kind: str, least: int) -> list[str]:
        """The groups of a kind ("view" or "zoom") with at least n pictures."""
        return [key for key, listed in self.facts.items() if key.startswith(kind + "_") and len(listed) >= least]

    @staticmethod
    def grid(key: str) -> Grid:
        rows, _, columns = key.partition("_")[2].partition("x")
        return int(rows), int(columns)
