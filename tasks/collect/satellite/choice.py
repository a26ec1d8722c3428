"""Choosing the scenes of a picture by what they really show of it, and which scene each pixel is taken from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.settings.satellite import SatelliteSettings
from tasks.collect.satellite.cover import Candidate, candidates, covers, next_best, sampled, touched
from tasks.services.errors import gather_all
from tasks.services.sentinel.grid import Grid
from tasks.services.sentinel.layers import Layer, look
from tasks.services.sentinel.raster import Mask
from tasks.services.sentinel.scenes import Scene, UnusableScene
from tasks.services.stac import Stac

MOST_UNUSABLE = 50  # scenes of a picture whose class maps are missing or damaged, before it is given up
COVERS = 4  # sets of scenes compared before the best is taken
UNOWNED = -1
Owner = NDArray[np.int8]  # the number of the layer a pixel is taken from, or UNOWNED


@dataclass
class Choice:
    """The layers of a picture in order of preference, and what was looked at on the way, each scene once."""

    stac: Stac
    grid: Grid
    settings: SatelliteSettings
    known: dict[str, Layer]  # by scene id, also those looked at before
    layers: list[Layer] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)  # scene id -> why
    needed: int = 0  # scenes of the set it began with, before it was cut to as many as may be

    @property
    def tried(self) -> set[str]:
        return self.known.keys() | self.unusable.keys()

    @property
    def tired(self) -> bool:
        # A file that is missing says nothing about clouds: it does not count as a try of those.
        return len(self.known) >= self.settings.tries or len(self.unusable) >= MOST_UNUSABLE

    async def look_at(self, scenes: Sequence[Scene]) -> list[Layer]:
        await gather_all(self._look(scene) for scene in scenes if scene.id not in self.tried)
        return [self.known[scene.id] for scene in scenes if scene.id in self.known]

    async def _look(self, scene: Scene) -> None:
        try:
            self.known[scene.id] = await look(self.stac, scene, self.grid, self.settings)
        except UnusableScene as why:
            self.unusable[scene.id] = str(why)


async def choose(
    stac: Stac, scenes: Sequence[Scene], grid: Grid, settings: SatelliteSettings, known: dict[str, Layer] | None = None
) -> Choice:
    """The fewest scenes that show the picture, and further ones only for what they leave unclear.

    `known` are the layers looked at before, by scene; what is looked at now is added.
    """
    scored = candidates(scenes, grid)
    choice = Choice(stac, grid, settings, {} if known is None else known)
    choice.layers = await _best_cover(scored, choice)
    if not choice.layers and len(choice.unusable) < len(scored):
        # All the first choices were unusable files: one after the other, then.
        choice.layers = await _any_layer(scored, choice)
    if choice.layers:
        await _patch(scored, choice)
    return choice


async def _best_cover(candidates: list[Candidate], choice: Choice) -> list[Layer]:
    """The layers of the first set of scenes that is clear enough, or of the clearest one looked at."""
    best: list[Layer] = []
    best_share = -1.0
    for cover in covers(candidates, choice.settings.day_cost, COVERS):
        layers = await choice.look_at([candidate.scene for candidate in cover])
        share = _clear_share(layers)
        if layers and share > best_share:
            best, best_share, choice.needed = layers, share, len(layers)
        if share >= choice.settings.good_share or choice.tired:
            break
    # Largest first: the picture's main scene.
    best = sorted(best, key=lambda layer: (-int(layer.clear.sum()), layer.scene.id))
    return best[: choice.settings.max_scenes]


async def _any_layer(candidates: list[Candidate], choice: Choice) -> list[Layer]:
    for candidate in candidates:
        if choice.tired:
            break
        if layers := await choice.look_at([candidate.scene]):
            return layers
    return []


async def _patch(candidates: list[Candidate], choice: Choice) -> None:
    """Add scenes while something is unclear that they show clearly."""
    chosen, settings = choice.layers, choice.settings
    missing = ~np.logical_or.reduce([layer.clear for layer in chosen])
    worth = max(1, round(settings.worth_share * missing.size))
    used = {layer.scene.id for layer in chosen}
    while len(chosen) < settings.max_scenes and int(missing.sum()) >= worth:
        # Those that were looked at already cost nothing more.
        at_hand = [layer for name, layer in sorted(choice.known.items()) if name not in used]
        best = max(at_hand, key=lambda layer: int((layer.clear & missing).sum()), default=None)
        gain = int((best.clear & missing).sum()) if best is not None else 0
        following = _next(candidates, missing, choice)
        if following is not None and not choice.tired and gain < 0.9 * int(missing.sum()):
            await choice.look_at([following.scene])
            continue
        if best is None or gain < worth:
            return
        chosen.append(best)
        used.add(best.scene.id)
        missing &= ~best.clear


def _next(candidates: list[Candidate], missing: Mask, choice: Choice) -> Candidate | None:
    # The points stand for areas; what is too narrow for them is looked for only after all else.
    for points in (sampled(missing), touched(missing)):
        best = next_best(candidates, points, choice.layers[0].scene, choice.settings.day_cost, choice.tried)
        if best is not None:
            return best
    return None


def _clear_share(layers: Sequence[Layer]) -> float:
    return float(np.logical_or.reduce([layer.clear for layer in layers]).mean()) if layers else 0.0


def owners(layers: Sequence[Layer]) -> tuple[Owner, Mask]:
    """Which layer each pixel is taken from, and which pixels are clear.

    Where no scene is clear the first one that saw anything is shown: a cloud is better than a hole.
    """
    owner = np.full(layers[0].clear.shape, UNOWNED, dtype=np.int8)
    free = np.ones(owner.shape, dtype=np.bool_)
    for number, layer in enumerate(layers):
        np.copyto(owner, number, where=free & layer.clear)
        free &= ~layer.clear
    clear = ~free
    if free.any():
        for number, layer in enumerate(layers):
            np.copyto(owner, number, where=free & layer.seen)
            free &= ~layer.seen
    return owner, clear
