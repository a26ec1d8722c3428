"""The judge: can this picture be localized? Class, score, five sub-scores, ten scene categories, from pixels.

From above there is no sign and no traffic. What narrows a place down is the shape of a coast or a river, the plan of a
town, how fields are cut, and relief; forest, desert or open sea alone could be anywhere.
"""

import random
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.clues import sign_words_in, street_in
from infra.offline.chat.placenames import place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.sight import SeenPicture, look_at_picture

GROUND_PX = 512  # the long side at which a scene is measured
BLOCK_PX = 8  # a field or a quarter of a town covers at least one block
TOWN_FROM, WATER_FROM = 0.01, 0.004  # smaller shares are a few roofs, or a pond
Mask = NDArray[np.bool_]
DARK, BLURRED, CLOUDED = 0.12, 0.22, 0.5
LOCALIZABLE_FROM = 4.0


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
    ratio = GROUND_PX / max(image.size)
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
        towns=_count_areas(town, 400),
        river=river,
        coast=coast,
        contrast=float(min(1.0, np.percentile(np.abs(np.diff(light, axis=1)), 99) / 0.15)),
    )


def clues_from_above(ground: Ground) -> list[str]:
    """What a person would name, most telling first."""
    clues = []
    if ground.coast:
        clues.append("the shape of a shore")
    if ground.river:
        clues.append("the course of a river")
    if ground.town >= TOWN_FROM:
        clues.append(f"the plan of {'a town' if ground.towns < 2 else f'{ground.towns} towns'}")
    if ground.fields > 0.25:
        clues.append("how the fields are cut")
    return clues or ["none"]


def sub_scores_from_above(ground: Ground) -> dict[str, float]:
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


def overall_from_above(ground: Ground, subscores: dict[str, float]) -> float:
    """Figure 8's scale: a shore and a town together tell most, bare nature or fields alone could be anywhere."""
    score = 1.0 + 0.4 * subscores["distinctiveness_of_cultural_landscape"]
    score += 0.35 * subscores["distinctiveness_of_natural_landscape"]
    if not (ground.coast or ground.river or ground.town >= TOWN_FROM):
        score = min(score, 3.0)
    return _ten(score * min(1.0, 0.2 + subscores["image_clarity"] / 8))


def categories_from_above(ground: Ground) -> dict[str, str]:
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
    """The verdict on the last picture sent, as JSON in the asked schema or in its own."""
    picture = request.last_picture()
    verdict = (
        assess_from_above(measure_ground(picture.rgb())) if _from_above(request) else assess(look_at_picture(picture))
    )
    if request.temperature > 0:
        shaken = float(str(verdict["score"])) + dice.gauss(0, 0.3 * request.temperature)
        verdict["score"] = round(min(10.0, max(0.0, shaken)), 1)
    if not request.response_schema:
        return Reply(fill_schema({}, verdict))
    return Reply(fill_schema(request.response_schema, verdict | aliases(verdict)))


def assess(seen: SeenPicture) -> dict[str, object]:
    """The judge's view of a look."""
    subscores = sub_scores(seen)
    score = overall(seen, subscores)
    label, reason = classify(seen, score)
    return {
        "verdict": label,
        "score": score,
        "reason": reason,
        "subscores": subscores,
        "categories": categories(seen),
        "clues": clue_list(seen),
    }


def assess_from_above(ground: Ground) -> dict[str, object]:
    """The judge's view of a satellite scene; no structure is famous enough in it to be a landmark."""
    subscores, clues = sub_scores_from_above(ground), clues_from_above(ground)
    score = overall_from_above(ground, subscores)
    if ground.cloud > CLOUDED:
        label, reason = "non_localizable", "clouds hide most of the ground"
    elif score < LOCALIZABLE_FROM:
        told = "" if clues == ["none"] else f", and {clues[0]} is not enough"
        label, reason = "non_localizable", f"seen from above, little narrows down the place{told}"
    else:
        label, reason = "localizable", "clues can be combined: " + "; ".join(clues[:3])
    return {
        "verdict": label,
        "score": score,
        "reason": reason,
        "subscores": subscores,
        "categories": categories_from_above(ground),
        "clues": clues,
    }


def _from_above(request: ChatRequest) -> bool:
    """Whether the question says that it is about a satellite image."""
    return any("satellite image" in message.text.lower() for message in request.messages if message.role != "assistant")


def classify(seen: SeenPicture, score: float) -> tuple[str, str]:
    scene = seen.scene
    if scene.brightness < DARK:
        return "non_localizable", "the picture is too dark to see where it was taken"
    if scene.sharpness < BLURRED:
        return "non_localizable", "the picture is too blurred to make out signs or structures"
    if scene.landmark:
        return "landmark", f"an iconic structure dominates the view: {scene.landmark}"
    if score < LOCALIZABLE_FROM:
        return "non_localizable", "nothing in the picture narrows down the place: no readable text, few structures"
    return "localizable", "clues can be combined: " + "; ".join(clue_list(seen)[:3])


def sub_scores(seen: SeenPicture) -> dict[str, float]:
    """The five sub-scores of GeoAgent figure 8, each 0..10."""
    scene = seen.scene
    letters = sum(len(re.findall(r"\w", line.text)) for line in seen.readable)
    light = min(1.0, scene.brightness / 0.3)
    culture = 2.0 + 12 * min(0.3, scene.building_share) + min(3.0, len(seen.readable)) + (3 if scene.landmark else 0)
    nature = 2.0 + 10 * min(0.4, scene.green_share) + (2 if scene.ground not in ("grey", "unclear") else 0)
    traffic = 1.0 + (3 if scene.side else 0) + (2 if scene.centre else 0) + (1 if scene.edge else 0)
    return {
        "image_clarity": _ten(10 * min(1.0, scene.sharpness) * light),
        "amount_of_text": _ten(min(10.0, letters / 5)),
        "distinctiveness_of_cultural_landscape": _ten(culture),
        "distinctiveness_of_natural_landscape": _ten(nature),
        "vehicle_and_pedestrian_information": _ten(traffic),
    }


def overall(seen: SeenPicture, subscores: dict[str, float]) -> float:
    """Figure 8's scale: legible signs and landmarks lead, bare nature trails, a spoilt picture is near zero."""
    names = any(place_names().mentions(line.text, fuzzy=False) for line in seen.readable)
    words = any(street_in(line.text) or sign_words_in(line.text) for line in seen.readable)
    score = 2.0 + (3.0 if names else 0.0) + (1.5 if words else 0.0) + (0.5 if seen.readable else 0.0)
    score += 0.1 * subscores["vehicle_and_pedestrian_information"] + 0.1 * subscores["amount_of_text"]
    score += 0.05 * subscores["distinctiveness_of_cultural_landscape"]
    if seen.scene.landmark:
        score = max(score, 9.5)
    return _ten(score * min(1.0, 0.2 + subscores["image_clarity"] / 8))


def categories(seen: SeenPicture) -> dict[str, str]:
    """GeoAgent's ten scene categories: yes, no or maybe."""
    scene = seen.scene
    words = any(street_in(line.text) or sign_words_in(line.text) for line in seen.readable)
    return {
        "manmade": _grade(scene.road_share + scene.building_share, 0.05, 0.12),
        "traffic": "yes" if scene.side or scene.centre else _grade(scene.road_share, 0.05, 0.4),
        "buildings": _grade(scene.building_share, 0.03, 0.08),
        "sign": "yes" if seen.readable else "maybe" if seen.lines else "no",
        "language": "yes" if words else "maybe" if seen.readable else "no",
        "natural": _grade(scene.green_share + scene.soil_share, 0.08, 0.3),
        "plants": _grade(scene.green_share, 0.01, 0.05),
        "mountains_and_rivers": _grade(scene.hill_share, 0.01, 0.03),
        "weather": _grade(scene.sky_share, 0.05, 0.15),
        "agricultural": "maybe" if scene.green_share > 0.3 and scene.building_share < 0.03 else "no",
    }


def clue_list(seen: SeenPicture) -> list[str]:
    scene = seen.scene
    clues = [f"text '{line.text}'" for line in seen.readable[:4]]
    if scene.side:
        clues.append(f"traffic on the {scene.side}")
    if scene.centre:
        clues.append(f"{scene.centre} centre line")
    if scene.landmark:
        clues.insert(0, scene.landmark)
    return clues or ["none"]


def aliases(verdict: dict[str, object]) -> dict[str, object]:
    """The same values under the names clients give them."""
    subscores, kinds = verdict["subscores"], verdict["categories"]
    assert isinstance(subscores, dict) and isinstance(kinds, dict)
    return {
        "class": verdict["verdict"],
        "sub_scores": subscores,
        "scenes": kinds,
        "cultural_landscape": subscores["distinctiveness_of_cultural_landscape"],
        "natural_landscape": subscores["distinctiveness_of_natural_landscape"],
        "vehicles_and_pedestrians": subscores["vehicle_and_pedestrian_information"],
        **subscores,
        **kinds,
    }


def _grade(share: float, maybe: float, yes: float) -> str:
    return "yes" if share >= yes else "maybe" if share >= maybe else "no"


def _ten(value: float) -> float:
    return round(min(10.0, max(0.0, value)), 1)
