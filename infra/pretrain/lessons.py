"""The order of lessons: single letters, short strings, words, then whole signs as they stand in the streets."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from infra.offline.place import Place
from infra.pretrain.boards import Board, boards_of, practice_board
from infra.pretrain.pictures import readable

LEVELS = (1, 2, 3, 5, 8, 12, 18, 34)  # most characters of a line
SIGNS_FROM = 5  # the level number from which real signs come


def letters_of(places: Sequence[Place]) -> str:
    """Every letter that stands on the signs of these places, and digits."""
    seen = {letter for place in places for board in boards_of(place) for line in board.lines if readable(line)
            for letter in line}  # fmt: skip
    return "".join(sorted(seen | set("0123456789.+") - {" "}))


def lesson(number: int, places: Sequence[Place], letters: str, rng: random.Random) -> tuple[Board, int, float]:
    """(board, asked line, letter height in pixels) of the next exercise at a level."""
    most, share = LEVELS[number], rng.random()
    small = 7.5 if number == len(LEVELS) - 1 else 10.0 if number >= SIGNS_FROM else 14.0
    size = math.exp(rng.uniform(math.log(small), math.log(28.0)))
    signs = 0.0 if number < SIGNS_FROM else 0.55 if number < len(LEVELS) - 1 else 0.75
    if share < signs:
        board = rng.choice([b for b in boards_of(rng.choice(places)) if b.lines[0] != "MONUMENT" or rng.random() < 0.3])
        line = rng.randrange(len(board.lines))
        if readable(board.lines[line]) and len(board.lines[line]) <= 34:
            return board, line, size
    count = most if rng.random() < 0.5 else rng.randrange(1, most + 1)
    random_text = "".join(rng.choice(letters) for _ in range(count))
    text = random_text if rng.random() < 0.4 else _piece(places, count, rng)
    return practice_board(text.strip() or "a", rng), 0, size


def _piece(places: Sequence[Place], count: int, rng: random.Random) -> str:
    """A stretch of a real sign's text."""
    board = rng.choice(boards_of(rng.choice(places)))
    line = rng.choice(board.lines)
    if not readable(line):
        return "".join(rng.choice("0123456789") for _ in range(count))
    start = rng.randrange(max(1, len(line) - count + 1))
    return line[start : start + count]
