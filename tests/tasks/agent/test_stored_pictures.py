"""A picture that is tried several times is read and decoded once."""

import asyncio
import io
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from schemas.errors import LakeError
from tasks.agent.picture import StoredPictures, open_picture
from tasks.imaging import images
from tasks.lake import Lake

BOX = (10.0, 10.0, 60.0, 40.0)


def jpeg_noise(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width, height), 60).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def test_tries_at_the_same_time_read_and_decode_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Lake(tmp_path / "lake").images
    data = jpeg_noise(800, 400)
    row = {"sha256": store.put(data, "jpg"), "extension": "jpg"}
    read, decoded = Mock(side_effect=store.read), Mock(side_effect=images._decoded)
    monkeypatch.setattr(store, "read", read)
    monkeypatch.setattr(images, "_decoded", decoded)
    pictures = StoredPictures(store, 50_000, 4_000, keep=2)

    async def tries() -> list[bytes]:
        found = await asyncio.gather(*(pictures.of_row(row) for _ in range(8)))
        return await asyncio.gather(*(asyncio.to_thread(one.region, BOX) for one in found))

    regions = asyncio.run(tries())
    assert (read.call_count, decoded.call_count) == (1, 1)
    assert set(regions) == {open_picture(data, 50_000, 4_000).region(BOX)}, "as one that is opened by itself"


def test_one_that_is_not_there_is_asked_for_each_time(tmp_path: Path) -> None:
    store = Lake(tmp_path / "lake").images
    data = jpeg_noise(80, 40)
    name = store.put(data, "jpg")
    path = Path(store.path(name, "jpg"))
    path.unlink()
    pictures = StoredPictures(store, 50_000, 100, keep=2)
    with pytest.raises(LakeError):
        pictures.opened(name, "jpg")
    store.put(data, "jpg")
    assert pictures.opened(name, "jpg").original == data, "a picture that was put back is found"
