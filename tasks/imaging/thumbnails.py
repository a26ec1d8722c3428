"""Small copies of many pictures, made by processes of their own: `python -m tasks.imaging.thumbnails SIDE_PX`.

Between decoding and encoding, threads of one process wait for each other's interpreter lock; processes do not, and what
started them can go on meanwhile. A process reads lines `sha256 <tab> picture <tab> target` and answers each with 1, or
with 0 for a picture that is missing, is not what its name says, or cannot be decoded.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.imaging.images import BadImage, thumbnail

ROOT = Path(__file__).resolve().parents[2]
Job = tuple[str, Path, Path]  # sha256, picture, target


def make_thumbnails(jobs: Sequence[Job], side_px: int) -> list[bool]:
    """Write a small JPEG for each job; returns which pictures could be read."""
    processes = len(os.sched_getaffinity(0))
    for folder in {target.parent for _, _, target in jobs}:
        folder.mkdir(parents=True, exist_ok=True)
    shares = [jobs[start::processes] for start in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        answers = list(pool.map(lambda share: _answers(share, side_px), shares))
    readable = [False] * len(jobs)
    for start, answer in enumerate(answers):
        readable[start::processes] = answer
    return readable


def _answers(jobs: Sequence[Job], side_px: int) -> list[bool]:
    if not jobs:
        return []
    command = [sys.executable, "-m", __name__, str(side_px)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    lines = "".join(f"{sha256}\t{picture}\t{target}\n" for sha256, picture, target in jobs)
    done = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, env=environment, check=True)
    answer = [line == b"1" for line in done.stdout.split()]
    if len(answer) != len(jobs):
        raise RuntimeError(f"{len(jobs)} small pictures were requested, {len(answer)} answered")
    return answer


def write_thumbnail(sha256: str, picture: str, target: str, side_px: int) -> bool:
    """Make one small JPEG, whole or not at all; False for a picture that cannot be used."""
    try:
        data = Path(picture).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            return False
        small = thumbnail(data, side_px, finer=1)  # half the time; at this size it cannot be seen
    except (FileNotFoundError, BadImage):
        return False
    part = Path(f"{target}-{os.getpid()}.part")
    part.write_bytes(small)
    part.rename(target)
    return True


def main() -> None:
    side_px = int(sys.argv[1])
    for line in sys.stdin.buffer:
        sha256, picture, target = os.fsdecode(line.rstrip(b"\n")).split("\t")
        sys.stdout.write("1\n" if write_thumbnail(sha256, picture, target, side_px) else "0\n")


if __name__ == "__main__":
    main()
