"""A lake on a real object store, SeaweedFS: conditional writes of many at once, and commands that are killed."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import pytest

from infra.offline.server import create_app, serving
from infra.offline.world import World
from tasks.lake import Lake
from tasks.lake.object_blobs import ObjectBlobs
from tasks.lake.verify import verify

pytestmark = pytest.mark.real
KILLS, PLACES = 2, 8
ROW = ["image_id", "source_id", "sha256", "run_id", "written_at"]
SETTINGS = (
    f"plan.places={PLACES}",
    "collect.panorama_min_pixels=1",
    "plan.countries=[FR]",
    "collect.satellite.enabled=false",
    "spread.workers=1",
)


@pytest.fixture
def environment(store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**store, "GEOFIX_STATE": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_one_of_many_writers_wins() -> None:
    blobs = Lake("s3://lake/races").blobs
    assert isinstance(blobs, ObjectBlobs)
    for race in range(10):
        results: list[bool] = []
        barrier = threading.Barrier(16)

        def write(writer: int, key: str = f"race-{race}") -> None:
            barrier.wait()  # noqa: B023
            results.append(blobs.create(key, str(writer).encode()))  # noqa: B023

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(results) == {True: 1, False: 15}


def started(command: str, lake: str, url: str, log: Path) -> subprocess.Popen[bytes]:
    overrides = (*SETTINGS, f"offline.port={urlsplit(url).port}")
    settings = [word for override in overrides for word in ("--set", override)]
    words = [sys.executable, "-m", "flows.cli", command, "--lake", lake, *settings]
    with log.open("ab") as out:
        return subprocess.Popen(words, stdout=out, stderr=out, env=os.environ.copy())


@pytest.mark.usefixtures("environment")
def test_killed_commands_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    """Collecting is killed with SIGKILL while it commits, and run again: what stood stands, all is there once."""
    lake, log, committed = Lake("s3://lake/killed"), tmp_path / "log", pl.DataFrame()
    with serving(create_app(World(seed=7, pano_width=1024), warm=False)) as url:
        assert started("plan", lake.uri, url, log).wait(300) == 0, log.read_text()[-2000:]
        for _ in range(KILLS):
            process, height = started("collect", lake.uri, url, log), lake.read("images").height
            while process.poll() is None and lake.read("images").height == height:
                time.sleep(0.3)
            assert process.poll() is None, "it ended before the kill: more places are needed"
            process.kill()
            process.wait()
            committed = lake.read("images").select(*ROW)
        assert started("collect", lake.uri, url, log).wait(300) == 0, log.read_text()[-2000:]
    assert list(verify(lake)) == []
    images, gaps = lake.read("images"), lake.read("gaps")
    assert 0 < committed.height <= images.height  # a kill may come right after the last commit
    assert committed.join(images, on=ROW, how="anti").is_empty(), "what was committed is neither lost nor done again"
    assert Counter(images.select("source_id", "kind").iter_rows()).most_common(1)[0][1] == 1
    done = {*images.select("place_id", "kind").iter_rows(), *gaps.select("place_id", "kind").iter_rows()}
    places = lake.read("places")["place_id"]
    assert done == {(place, kind) for place in places for kind in ("panorama", "photo")} and len(places) == PLACES
