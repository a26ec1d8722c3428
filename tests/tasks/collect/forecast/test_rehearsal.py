"""What an estimate computes in a run's place is what the run computes."""

import io
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Kind
from tasks.collect.forecast import rehearsal
from tasks.collect.satellite.layers import Layer
from tasks.collect.satellite.mosaic import Mosaic
from tasks.collect.satellite.scenes import Scene


@pytest.mark.parametrize(("kind", "aspect"), [("panorama", 2.0), ("photo", 4 / 3)])
def test_a_stand_in_is_a_picture_of_about_that_size(kind: Kind, aspect: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(rehearsal, "prepare", lambda data, *_: seen.append(data))
    for pixels in (300_000, 1_000_000, 1_300_000, 4_147_200):
        rehearsal.prepare_like(pixels, kind, CollectSettings())
        with Image.open(io.BytesIO(seen[-1])) as picture:
            assert picture.width * picture.height == pytest.approx(pixels, rel=0.1)
            assert picture.width / picture.height == pytest.approx(aspect, rel=0.01)
            # As a photograph, neither flat nor noise: decoding takes about as long.
            assert 0.1 < len(seen[-1]) / pixels < 0.6


def test_it_is_prepared_as_any_other_whatever_is_too_small() -> None:
    for kind in ("panorama", "photo"):
        rehearsal.prepare_like(50_000, kind, CollectSettings(panorama_width=512))


def test_a_scene_picture_is_put_together_from_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    size, settings = 96, CollectSettings().satellite
    west = np.zeros((size, size), dtype=np.bool_)
    west[:, :60] = True
    scenes = [cast(Scene, SimpleNamespace(id=name, offset=1000)) for name in "ab"]
    layers = [Layer(scenes[0], west, west), Layer(scenes[1], np.ones_like(west), np.ones_like(west))]
    seen: list[Mosaic] = []

    def picture(mosaic: Mosaic, *rest: Any) -> bytes:
        seen.append(mosaic)
        return b""

    monkeypatch.setattr(rehearsal, "make_picture", picture)
    rehearsal.compose_like(layers, size, settings)
    [mosaic] = seen
    assert {part.scene.id: part.share for part in mosaic.parts} == {"a": 60 / size, "b": 36 / size}
    assert mosaic.clear_share == 1.0 and mosaic.no_data_share == 0.0
