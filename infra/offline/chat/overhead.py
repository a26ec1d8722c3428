"""A satellite scene in numbers: water, town, fields, forest and cloud, from pixels alone, and what they are worth.

Seen from above there is no sign and no traffic. What narrows a place down is the shape of a coast or a river, the plan
of a town, how fields are cut, and relief; forest, desert or open sea alone could be anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

WORK_PX = 512  # the long side at which a scene is measured
BLOCK_PX = 8  # a field or a quarter of a town covers at least one block
TOWN_FROM, WATER_FROM = 0.01, 0.004  # smaller shares are a few roofs, or a pond
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Ground:
    """Shares of the scene, 0..1, and how its parts lie."""

    water: float
    town: float
    fields: float
    forest: float
    cloud: float
    towns: int  # separate ones
    river: bool  # a band of water from edge to edge, or a narrow one that winds
    coast: bool  # land and a broad sheet of water with a shore between them
    contrast: float  # 0 a haze, 1 crisp


def survey(image: Image.Image) -> Ground:
    """Measures a scene at a fixed working size."""
    ratio = WORK_PX / max(image.size)
    size = (max(16, round(image.width * ratio)), max(16, round(image.height * ratio)))
    pixels = np.asarray(image.resize(size, Image.Resampling.BOX), dtype=np.float32) / np.float32(255)
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    light = pixels.mean(axis=2)
    spread = pixels.max(axis=2) - pixels.min(axis=2)
    cloud = (light > 0.8) & (spread < 0.08)
    water = _opened((blue > green) & (blue > red + 0.02) & (light < 0.45), 2)
    # Roofs and streets are grey, and no two beside each other are alike; haze and bare rock are grey and even.
    rough = ndimage.generic_gradient_magnitude(light, ndimage.sobel) > 0.12
    built = (spread < 0.11) & (light > 0.28) & ~cloud & ~water
    town = _opened(ndimage.uniform_filter((built & rough).astype(np.float32), 9) > 0.3, 5)
    leaves = (green > red * 1.05) & (green >= blue) & (light < 0.24) & ~town & ~water
    forest = ndimage.uniform_filter(leaves.astype(np.float32), 2 * BLOCK_PX + 1) > 0.75
    land = ~(water | town | forest | cloud)
    river, coast = _shores(water)
    return Ground(
        water=float(water.mean()),
        town=float(town.mean()),
        fields=float((land & _patchwork(light)).mean()),
        forest=float(forest.mean()),
        cloud=float(cloud.mean()),
        towns=_parts(town, 400),
        river=river,
        coast=coast,
        contrast=float(min(1.0, np.percentile(np.abs(np.diff(light, axis=1)), 99) / 0.15)),
    )


def clues(ground: Ground) -> list[str]:
    """What a person would name, most telling first."""
    found = []
    if ground.coast:
        found.append("the shape of a shore")
    if ground.river:
        found.append("the course of a river")
    if ground.town >= TOWN_FROM:
        found.append(f"the plan of {'a town' if ground.towns < 2 else f'{ground.towns} towns'}")
    if ground.fields > 0.25:
        found.append("how the fields are cut")
    return found or ["none"]


def sub_scores(ground: Ground) -> dict[str, float]:
    """The five sub-scores of GeoAgent figure 8, each 0..10; from above there is no text and no vehicle."""
    culture = 1.0 + 6 * min(1.0, ground.town / 0.15) + min(2.0, 0.5 * ground.towns) + min(1.0, 2 * ground.fields)
    nature = 1.0 + 4 * ground.coast + 4 * ground.river + 2 * min(1.0, 3 * ground.forest * (1 - ground.forest))
    return {
        "image_clarity": _ten(10 * ground.contrast * (1 - ground.cloud)),
        "amount_of_text": 0.0,
        "distinctiveness_of_cultural_landscape": _ten(culture),
        "distinctiveness_of_natural_landscape": _ten(nature),
        "vehicle_and_pedestrian_information": 0.0,
    }


def overall(ground: Ground, subscores: dict[str, float]) -> float:
    """Figure 8's scale: a shore and a town together tell most, bare nature or fields alone could be anywhere."""
    score = 1.0 + 0.4 * subscores["distinctiveness_of_cultural_landscape"]
    score += 0.35 * subscores["distinctiveness_of_natural_landscape"]
    if not (ground.coast or ground.river or ground.town >= TOWN_FROM):
        score = min(score, 3.0)
    return _ten(score * min(1.0, 0.2 + subscores["image_clarity"] / 8))


def categories(ground: Ground) -> dict[str, str]:
    """GeoAgent's ten scene categories: yes, no or maybe."""
    return {
        "manmade": _grade(ground.town + 0.2 * ground.fields, 0.01, 0.04),
        "traffic": "maybe" if ground.town >= TOWN_FROM else "no",
        "buildings": _grade(ground.town, 0.005, 0.02),
        "sign": "no",
        "language": "no",
        "natural": _grade(ground.forest + ground.water, 0.05, 0.2),
        "plants": _grade(ground.forest + ground.fields, 0.05, 0.15),
        "mountains_and_rivers": "yes" if ground.river else "maybe" if ground.coast else "no",
        "weather": _grade(ground.cloud, 0.02, 0.1),
        "agricultural": _grade(ground.fields, 0.1, 0.25),
    }


def _opened(mask: Mask, steps: int) -> Mask:
    """The mask without what is thinner than twice the steps."""
    return np.asarray(ndimage.binary_opening(mask, iterations=steps))


def _patchwork(light: NDArray[np.float32]) -> Mask:
    """Where light changes from block to block: parcels do, forest, sand and sea do not."""
    mean = ndimage.uniform_filter(light, BLOCK_PX)
    around = ndimage.uniform_filter((mean - ndimage.uniform_filter(mean, 6 * BLOCK_PX)) ** 2, 6 * BLOCK_PX)
    return np.asarray(np.sqrt(np.maximum(around, 0)) > 0.018)


def _parts(mask: Mask, least_px: int) -> int:
    """Separate areas of at least n pixels."""
    labels, count = ndimage.label(mask)
    return int((np.bincount(labels.ravel())[1:] >= least_px).sum()) if count else 0


def _shores(water: Mask) -> tuple[bool, bool]:
    """Whether there is a river, and whether there is a coast or lake shore."""
    labels, count = ndimage.label(water)
    river = coast = False
    for part in range(1, count + 1):
        mine = labels == part
        share = float(mine.mean())
        if share < WATER_FROM:
            continue
        broad = float(ndimage.distance_transform_edt(np.pad(mine, 1)).max())  # half the width of its broadest place
        length = float(mine.sum()) / (2 * broad)
        if length > 8 * broad and broad < 0.04 * max(water.shape):
            river = True
        elif share < 0.97:
            coast = True
    return river, coast


def _grade(share: float, maybe: float, yes: float) -> str:
    return "yes" if share >= yes else "maybe" if share >= maybe else "no"


def _ten(value: float) -> float:
    return round(min(10.0, max(0.0, float(value))), 1)
