"""Pictures are decoded together only as far as their pixels fit."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from schemas.settings.ingest import PictureRules
from tasks.ingest import photo
from tasks.ingest.photo import Photo, prepare
from tasks.ingest.refusal import Refusal
from tasks.ingest.room import Room

WAIT_S = 300  # only ever waited for in full by a test that fails


def test_who_does_not_fit_waits() -> None:
    room, order = Room(100), []

    def late() -> None:
        with room.take(50):
            order.append("late")

    with ThreadPoolExecutor(1) as pool:
        with room.take(40), room.take(20):
            waiting = pool.submit(late)
            order.append("the first two")
        waiting.result(WAIT_S)
    assert order == ["the first two", "late"]
    with pytest.raises(ZeroDivisionError), room.take(1000):  # the largest picture gets all there is
        raise ZeroDivisionError
    with room.take(100):  # and gave it back
        pass


def test_pictures_in_threads_stay_within_the_room(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = 400 * 300
    lock, now, most = threading.Lock(), 0, 0
    cleaned = photo.cleaned

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            return cleaned(*args, **kwargs)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(photo, "cleaned", counted)
    room, data, item = Room(2 * pixels + 1), darkroom.jpeg(), {"lat": 48.5, "lon": 2.5, "kind": None}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: prepare(data, item, PictureRules(), room), range(40)))
    assert all(isinstance(one, Photo) for one in found) and 1 <= most <= 2
    # A refused picture gives its room back as well.
    small = Room(pixels)
    for _ in range(3):
        refused = prepare(data, item, PictureRules(min_pixels=10**6), small)
        assert isinstance(refused, Refusal) and refused.reason == "too_small"
