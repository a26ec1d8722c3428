"""What only searches need is built when somebody begins to search, not while pictures are collected."""

import asyncio
import threading
from typing import Any

from infra.offline.server import _Warming


def test_pictures_build_nothing_and_the_first_question_builds_all_once() -> None:
    built, answered = [], []
    done = threading.Semaphore(0)

    async def answers(scope: dict[str, Any], receive: Any, send: Any) -> None:
        answered.append(scope["path"])

    def index(name: str) -> Any:
        def prepare() -> None:
            built.append(name)
            done.release()

        return prepare

    app = _Warming(answers, [index("names"), index("signs")])

    def ask(*paths: str) -> None:
        for path in paths:
            asyncio.run(app({"type": "http", "path": path}, None, None))

    ask("/health", "/mapillary/images", "/mapillary-cdn/m/1/original.jpg", "/stac/api/stac/v1/search", "/blob/a/b/c")
    asyncio.run(app({"type": "lifespan", "path": ""}, None, None))
    assert built == []
    ask("/v1/chat/completions", "/nominatim/search", "/mapillary/images")
    assert all(done.acquire(timeout=300) for _ in range(2))
    assert sorted(built) == ["names", "signs"] and not done.acquire(timeout=0.05)
    assert len(answered) == 9
