"""Small copies made by other processes are those this one makes, and what cannot be read is named."""

import hashlib
from pathlib import Path

import numpy as np

from tasks.imaging.decode import jpeg
from tasks.imaging.images import thumbnail
from tasks.imaging.thumbnails import Job, make_thumbnails


def test_processes_make_the_same_small_pictures(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    jobs: list[Job] = []
    for number in range(5):
        picture = tmp_path / f"picture {number}.jpg"
        picture.write_bytes(jpeg(random.integers(0, 255, (90, 160 + number, 3), np.uint8), 90))
        target = tmp_path / "small" / str(number % 2) / f"{number}.jpg"
        jobs.append((hashlib.sha256(picture.read_bytes()).hexdigest(), picture, target))
    jobs[1][1].write_bytes(b"\xff\xd8\xff not a picture")
    jobs[1] = (hashlib.sha256(jobs[1][1].read_bytes()).hexdigest(), *jobs[1][1:])  # damaged before it was stored
    jobs[2][1].write_bytes(jobs[2][1].read_bytes() + b"!")  # damaged since
    jobs[3][1].unlink()
    assert make_thumbnails(jobs, 80) == [True, False, False, False, True]
    for at in (0, 4):
        _, picture, target = jobs[at]
        assert target.read_bytes() == thumbnail(picture.read_bytes(), 80, finer=1)
    assert sorted(path.name for path in (tmp_path / "small").rglob("*.*")) == ["0.jpg", "4.jpg"]
    assert make_thumbnails([], 80) == []
