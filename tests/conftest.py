"""What holds for every test."""

import asyncio
import gc
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

import tasks.runtime  # noqa: F401 - before ray: sets its loopback mode
from schemas.settings.train import TinySettings
from tasks.lake import Commit, Lake

# A busy machine is slow: how long an example takes says nothing about whether it is right.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# These files take longest. Begun last, as files of few tests are by default, they would leave a core idle.
LONGEST_FILES = (
    *("test_demo.py", "test_up.py", "test_signals.py", "test_added_stage.py", "test_ingest_command.py"),
    *("test_runner.py", "test_training_run.py", "test_notebooks.py", "test_new_stage.py", "test_new_recipe.py"),
)
WORKER_BYTES = 5 * 2**30  # a process that runs tests takes 3 GB at its end, what it starts takes the rest


def pytest_sessionstart() -> None:
    """What is imported while collecting stays: looking through it for garbage takes seconds a process."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, where memory allows: a sixth of the time tests wait for what they started."""
    cores = psutil.cpu_count() or 1
    return cores + (psutil.virtual_memory().total >= (cores + 1) * WORKER_BYTES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the order of the tests in a file stays."""
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped and why, in the last lines: a test that did not run must not look like one that passed."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.write_sep("=", f"{len(reports)} tests skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


@pytest.fixture(autouse=True, scope="session")
def same_names_every_time() -> Iterator[None]:
    """Lakes made in this process have one key: which picture comes first, and so what a test sees, is no chance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.lake.names.new_key", lambda: "5eed" * 16)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny vision-language model with random weights."""
    from tasks.train.tiny import build_model, build_processor

    folder = tmp_path_factory.mktemp("models") / "tiny-model"
    tiny = TinySettings(vocabulary=400, hidden=64, layers=1, intermediate=64, vision_hidden=32, vision_layers=1)
    processor = build_processor(["Where was this picture taken? Latitude: 1.5"], tiny, 28 * 28 * 2, 28 * 28 * 6)
    build_model(processor, tiny, 0).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages run here, chunk after chunk: the frame as it is, without Ray's start."""

    def here(todo: Any, make: Any, settings: Any, resources: Any, is_async: bool, **_: Any) -> Iterator[Any]:
        if todo.is_empty():
            return
        chunks, call = list(todo.iter_slices(resources.chunk)), make()

        async def all_chunks() -> list[Any]:
            return await asyncio.gather(*(call(chunk) for chunk in chunks))

        yield from asyncio.run(all_chunks()) if is_async else map(call, chunks)

    monkeypatch.setattr("tasks.runtime.on_ray.pool.spread", here)


@pytest.fixture
def snapshot_of() -> Callable[..., str]:
    """snapshot_of(lake, **columns) -> the id of a snapshot of what the lake holds now, approved unless said otherwise.

    Each is an hour newer than the one before.
    """
    numbers = itertools.count(1)

    def make(lake: Lake, **columns: Any) -> str:
        number = next(numbers)
        made = datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(hours=number)
        row: dict[str, Any] = {
            "snapshot_id": f"snapshot-{number}",
            "table_versions_json": json.dumps({name: lake.version(name) for name in ("places", "images", "labels")}),
            "status": "approved",
            "reviewer": "Ada",
            "report": f"reports/snapshot-{number}/index.html",
            "checks_passed": True,
            "created_at": made,
            "reviewed_at": made,
            **columns,
        }
        lake.upsert("snapshots", [row], Commit(f"review-{row['snapshot_id']}", 1))
        return str(row["snapshot_id"])

    return make
