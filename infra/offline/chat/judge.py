"""The judge: can this picture be localized? Class, score, five sub-scores, ten scene categories, from pixels.

From above there is no sign and no traffic. What narrows a place down is the shape of a coast or a river, the plan of a
town, how fields are cut, and relief; forest, desert or open sea alone could be anywhere.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.clues import sign_words_in, street_in
from infra.offline.chat.placenames import place_names
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.scene import grade, pick, reduced
from infra.offline.chat.sight import SeenPicture, look_at_picture

GROUND_PX = 512  # the long side at which a scene is measured
BLOCK_PX = 8  # a field or a quarter of a town covers at least one block
TOWN_FROM, WATER_FROM = 0.01, 0.004  # smaller shares are a few roofs, or a pond
Mask = NDArray[np.bool_]
DARK, BLURRED, CLOUDED = 0.12, 0.22, 0.5
LOCALIZABLE_FROM = 4.0
PRESENT = "no maybe yes"


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


def measure_ground(image: Image.Image) -> Ground:
    """Measures a scene at a fixed working size."""
    pixels = reduced(image, GROUND_PX, 16)
    red, green, blue = np.moveaxis(pixels, 2, 0)
    light, spread = pixels.mean(axis=2), np.ptp(pixels, axis=2)
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
        towns=_count_areas(town, 400),
        river=river,
        coast=coast,
        contrast=float(min(1.0, np.percentile(np.abs(np.diff(light, axis=1)), 99) / 0.15)),
    )


def _opened(mask: Mask, steps: int) -> Mask:
    """The mask without what is thinner than twice the steps."""
    return np.asarray(ndimage.binary_opening(mask, iterations=steps))


def _patchwork(light: NDArray[np.float32]) -> Mask:
    """Where light changes from block to block: parcels do, forest, sand and sea do not."""
    mean = ndimage.uniform_filter(light, BLOCK_PX)
    around = ndimage.uniform_filter((mean - ndimage.uniform_filter(mean, 6 * BLOCK_PX)) ** 2, 6 * BLOCK_PX)
    return np.asarray(np.sqrt(np.maximum(around, 0)) > 0.018)


def _count_areas(mask: Mask, least_px: int) -> int:
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


def judge_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """The verdict on the last picture sent, as JSON in the requested schema or in its own."""
    picture = request.last_picture()
    # A question about a satellite scene says so: from above other things tell a place.
    is_from_above = "satellite image" in request.prompt.lower()
    verdict = assess_from_above(measure_ground(picture.rgb())) if is_from_above else assess(look_at_picture(picture))
    if request.temperature > 0:
        verdict["score"] = _ten(verdict["score"] + dice.gauss(0, 0.3 * request.temperature))
    return Reply(fill_schema(request.response_schema or {}, verdict))


def assess_from_above(ground: Ground) -> dict[str, Any]:
    """The judge's view of a satellite scene, where there is no text, no vehicle and no structure of fame.

    A shore and a town together tell most, bare nature or fields alone could be anywhere.
    """
    has_town = ground.town >= TOWN_FROM
    telling = {
        "the shape of a shore": ground.coast,
        "the course of a river": ground.river,
        f"the plan of {'a town' if ground.towns < 2 else f'{ground.towns} towns'}": has_town,
    }
    clues = [clue for clue, is_seen in telling.items() if is_seen]
    culture = 1.0 + 6 * min(1.0, ground.town / 0.15) + min(2.0, 0.5 * ground.towns) + min(1.0, 2 * ground.fields)
    nature = 1.0 + 4 * ground.coast + 4 * ground.river + 2 * min(1.0, 3 * ground.forest * (1 - ground.forest))
    parts = [_ten(part) for part in (10 * ground.contrast * (1 - ground.cloud), 0.0, culture, nature, 0.0)]
    score = 1.0 + 0.4 * parts[2] + 0.35 * parts[3]
    clues += ["how the fields are cut"] if ground.fields > 0.25 else []
    scenes = {
        "manmade": grade(ground.town + 0.2 * ground.fields, PRESENT, 0.01, 0.04),
        "traffic": "maybe" if has_town else "no",
        "buildings": grade(ground.town, PRESENT, 0.005, 0.02),
        "sign": "no",
        "language": "no",
        "natural": grade(ground.forest + ground.water, PRESENT, 0.05, 0.2),
        "plants": grade(ground.forest + ground.fields, PRESENT, 0.05, 0.15),
        "mountains_and_rivers": "yes" if ground.river else "maybe" if ground.coast else "no",
        "weather": grade(ground.cloud, PRESENT, 0.02, 0.1),
        "agricultural": grade(ground.fields, PRESENT, 0.1, 0.25),
    }
    spoilt = "clouds hide most of the ground" if ground.cloud > CLOUDED else ""
    told = f", and {clues[0]} is not enough" if clues else ""
    poor = f"seen from above, little narrows down the place{told}"
    return _verdict(score if any(telling.values()) else min(score, 3.0), parts, scenes, clues, spoilt, poor)


def assess(seen: SeenPicture) -> dict[str, Any]:
    """The judge's view of a look: legible signs and landmarks lead, bare nature and spoilt pictures trail."""
    scene, lines = seen.scene, [line.text for line in seen.readable]
    names = any(place_names().mentions(line, fuzzy=False) for line in lines)
    words = any(street_in(line) or sign_words_in(line) for line in lines)
    letters = sum(letter.isalnum() for line in lines for letter in line)
    clarity = 10 * min(1.0, scene.sharpness) * min(1.0, scene.brightness / 0.3)
    culture = 2.0 + 12 * min(0.3, scene.building_share) + min(3.0, len(lines)) + 3 * bool(scene.landmark)
    nature = 2.0 + 10 * min(0.4, scene.green_share) + 2 * (scene.ground != "grey")
    traffic = 1.0 + 3 * bool(scene.side) + 2 * bool(scene.centre) + bool(scene.edge)
    parts = [_ten(part) for part in (clarity, letters / 5, culture, nature, traffic)]
    score = 2.0 + 3.0 * names + 1.5 * words + 0.5 * bool(lines) + 0.1 * parts[4] + 0.1 * parts[1] + 0.05 * parts[2]
    clues = [scene.landmark] if scene.landmark else []
    clues += [f"text '{line}'" for line in lines[:4]]
    clues += [f"traffic on the {scene.side}"] if scene.side else []
    clues += [f"{scene.centre} centre line"] if scene.centre else []
    scenes = {
        "manmade": grade(scene.road_share + scene.building_share, PRESENT, 0.05, 0.12),
        "traffic": "yes" if scene.side or scene.centre else grade(scene.road_share, PRESENT, 0.05, 0.4),
        "buildings": grade(scene.building_share, PRESENT, 0.03, 0.08),
        "sign": "yes" if lines else "maybe" if seen.lines else "no",
        "language": "yes" if words else "maybe" if lines else "no",
        "natural": grade(scene.green_share + scene.soil_share, PRESENT, 0.08, 0.3),
        "plants": grade(scene.green_share, PRESENT, 0.01, 0.05),
        "mountains_and_rivers": grade(scene.hill_share, PRESENT, 0.01, 0.03),
        "weather": grade(scene.sky_share, PRESENT, 0.05, 0.15),
        "agricultural": "maybe" if scene.green_share > 0.3 and scene.building_share < 0.03 else "no",
    }
    spoilt = {
        "the picture is too dark to see where it was taken": scene.brightness < DARK,
        "the picture is too blurred to make out signs or structures": scene.sharpness < BLURRED,
    }
    poor = "nothing in the picture narrows down the place: no readable text, few structures"
    score = max(score, 9.5) if scene.landmark else score
    return _verdict(score, parts, scenes, clues, pick(spoilt), poor, scene.landmark)


def _verdict(
    score: float,
    parts: list[float],
    scenes: dict[str, str],
    clues: list[str],
    spoilt: str | None,
    poor: str,
    landmark: str | None = None,
) -> dict[str, Any]:
    """The verdict under the product's names; those of the parts of a score are GeoAgent's (figure 8)."""
    score = _ten(score * min(1.0, 0.2 + parts[0] / 8))
    label, reason = "localizable", "clues can be combined: " + "; ".join(clues[:3] or ["none"])
    if spoilt:
        label, reason = "non_localizable", spoilt
    elif landmark:
        label, reason = "landmark", f"an iconic structure dominates the view: {landmark}"
    elif score < LOCALIZABLE_FROM:
        label, reason = "non_localizable", poor
    names = "image_clarity", "amount_of_text", "cultural_landscape", "natural_landscape", "vehicles_and_pedestrians"
    return {
        "class": label,
        "score": score,
        "reason": reason,
        "sub_scores": dict(zip(names, parts, strict=True)),
        "scenes": scenes,
        "clues": clues or ["none"],
    }


def _ten(value: float) -> float:
    return round(min(10.0, max(0.0, value)), 1)
