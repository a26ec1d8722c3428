"""Makes `lake-VERSION.tar.xz`, the small lake by which the next release shows that it opens what this one wrote.

    python tests/data/make_lake.py tests/data/lake-0.1.0.tar.xz

Run by the code of the release, on the offline world. Pictures stay out, which are files and no part of a schema, and so
do reports, checkpoints and local state, which are made again.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SETTINGS = (
    *("plan.places=4", "plan.countries=[DE, FR, GB]", "plan.split={train: 1, validation: 0, benchmark: 0}"),
    *("collect.satellite.size_px=256", "curate.quality.kinds=[panorama, photo]", "synthesize.also_images=1"),
    *("curate.judge.view_max_pixels=300000", "review.auto_approve=true", "difficulty.k=2"),
    *("difficulty.policy=answerer-base", "spread.workers=1"),
)
LEFT_OUT = ("lake/images", "lake/reports", "lake/models", "lake/.state")


def main(target: Path) -> None:
    """Run the pipeline up to difficulty, and pack what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        command = [sys.executable, "-m", "flows.cli", "run", "--to", "difficulty", "--lake", str(lake), *sets]
        subprocess.run(command, check=True)
        with tarfile.open(target, "w:xz", preset=9) as packed:
            packed.add(lake, "lake", filter=lambda one: None if one.name.startswith(LEFT_OUT) else one)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
