"""Copies that were cropped, turned, framed, shifted or mirrored fit onto their originals; other pictures do not."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from tasks.imaging.decode import Pixels
from tasks.imaging.patches import correlation_of_copies, patches_of

COUNT = 24


def street(number: int, width: int = 480, height: int = 240) -> Pixels:
    """House fronts with windows, another street for every number."""
    random = np.random.default_rng(number)
    shown = np.full((height, width, 3), random.integers(140, 230, 3), np.uint8)
    shown[int(height * 0.7) :] = random.integers(70, 120)
    left = 0
    while left < width:
        wide, top = int(random.integers(25, 90)), int(random.integers(20, height // 2))
        cv2.rectangle(
            shown, (left, top), (left + wide - 3, int(height * 0.7)), random.integers(20, 235, 3).tolist(), -1
        )
        for x in range(left + 4, left + wide - 10, 14):
            for y in range(top + 5, int(height * 0.7) - 10, 17):
                cv2.rectangle(shown, (x, y), (x + 7, y + 9), random.integers(0, 255, 3).tolist(), -1)
        left += wide
    return shown


def turned(shown: Pixels, degrees: float) -> Pixels:
    height, width = shown.shape[:2]
    return np.asarray(
        cv2.warpAffine(shown, cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1), (width, height)), np.uint8
    )


COPIES: dict[str, tuple[Callable[[Pixels], Pixels], bool]] = {
    "cropped on all sides": (lambda shown: shown[12:-12, 24:-24], False),
    "cropped on two sides": (lambda shown: shown[24:, 48:], False),
    "turned by 3 degrees": (lambda shown: turned(shown, 3), False),
    "turned back and cropped": (lambda shown: turned(shown, -3)[14:-14, 14:-14], False),
    "framed": (
        lambda shown: np.asarray(cv2.copyMakeBorder(shown, *[20] * 4, cv2.BORDER_CONSTANT, value=(255,) * 3)),
        False,
    ),
    "shifted over its seam": (lambda shown: np.roll(shown, 170, axis=1), False),
    "shifted and mirrored": (lambda shown: np.ascontiguousarray(np.roll(shown, 170, axis=1)[:, ::-1]), True),
}


@pytest.mark.parametrize("kind", COPIES)
def test_nine_in_ten_copies_are_found_and_no_other_picture(kind: str) -> None:
    change, mirrored = COPIES[kind]
    originals = [patches_of(street(number)) for number in range(COUNT)]
    copies = [patches_of(change(street(number))) for number in range(COUNT)]
    fits = np.array([[correlation_of_copies(one, two, mirrored, 6) for two in copies] for one in originals])
    found = np.diag(fits) >= 0.95
    assert found.mean() >= 0.9
    assert (fits[~np.eye(COUNT, dtype=bool)] < 0.95).all()


def test_a_picture_without_anything_in_it_has_no_parts_and_no_copies() -> None:
    plain = patches_of(np.full((200, 300, 3), 128, np.uint8))
    assert plain.patches == [] and correlation_of_copies(plain, plain, False, 6) == 0.0
    assert plain.grey().shape == (43, 64)
