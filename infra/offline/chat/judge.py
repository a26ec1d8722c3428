"""The judge: can this picture be localized? Class, score, five sub-scores, ten scene categories, from pixels."""

from __future__ import annotations

import random
import re

from infra.offline.chat import overhead
from infra.offline.chat.clues import sign_words_in, street_in
from infra.offline.chat.errors import bad
from infra.offline.chat.placenames import place_names
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.schema import fill
from infra.offline.chat.sight import Look, look

DARK, BLURRED, CLOUDED = 0.12, 0.22, 0.5
LOCALIZABLE_FROM = 4.0


def speak(request: ChatRequest, dice: random.Random) -> Reply:
    """The verdict on the last picture sent, as JSON in the asked schema or in its own."""
    if not request.pictures:
        raise bad("This model needs an image: send an image_url part.", "messages", "image_required")
    picture = request.pictures[-1]
    verdict = assess_from_above(overhead.survey(picture.rgb())) if _from_above(request) else assess(look(picture))
    if request.temperature > 0:
        shaken = float(str(verdict["score"])) + dice.gauss(0, 0.3 * request.temperature)
        verdict["score"] = round(min(10.0, max(0.0, shaken)), 1)
    if not request.response_schema:
        return Reply(fill({}, verdict))
    return Reply(fill(request.response_schema, verdict | aliases(verdict)))


def assess(seen: Look) -> dict[str, object]:
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


def assess_from_above(ground: overhead.Ground) -> dict[str, object]:
    """The judge's view of a satellite scene; no structure is famous enough in it to be a landmark."""
    subscores, clues = overhead.sub_scores(ground), overhead.clues(ground)
    score = overhead.overall(ground, subscores)
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
        "categories": overhead.categories(ground),
        "clues": clues,
    }


def _from_above(request: ChatRequest) -> bool:
    """Whether the question says that it is about a satellite image."""
    return any("satellite image" in message.text.lower() for message in request.messages if message.role != "assistant")


def classify(seen: Look, score: float) -> tuple[str, str]:
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


def sub_scores(seen: Look) -> dict[str, float]:
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


def overall(seen: Look, subscores: dict[str, float]) -> float:
    """Figure 8's scale: legible signs and landmarks lead, bare nature trails, a spoilt picture is near zero."""
    names = any(place_names().mentions(line.text, fuzzy=False) for line in seen.readable)
    words = any(street_in(line.text) or sign_words_in(line.text) for line in seen.readable)
    score = 2.0 + (3.0 if names else 0.0) + (1.5 if words else 0.0) + (0.5 if seen.readable else 0.0)
    score += 0.1 * subscores["vehicle_and_pedestrian_information"] + 0.1 * subscores["amount_of_text"]
    score += 0.05 * subscores["distinctiveness_of_cultural_landscape"]
    if seen.scene.landmark:
        score = max(score, 9.5)
    return _ten(score * min(1.0, 0.2 + subscores["image_clarity"] / 8))


def categories(seen: Look) -> dict[str, str]:
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


def clue_list(seen: Look) -> list[str]:
    scene = seen.scene
    found = [f"text '{line.text}'" for line in seen.readable[:4]]
    if scene.side:
        found.append(f"traffic on the {scene.side}")
    if scene.centre:
        found.append(f"{scene.centre} centre line")
    if scene.landmark:
        found.insert(0, scene.landmark)
    return found or ["none"]


def aliases(verdict: dict[str, object]) -> dict[str, object]:
    """The same values under the names clients give them."""
    subscores, kinds = verdict["subscores"], verdict["categories"]
    assert isinstance(subscores, dict) and isinstance(kinds, dict)
    names = ("class", "label", "localizability", "classification", "localizability_class")
    same = dict.fromkeys(names, verdict["verdict"])
    scores = dict.fromkeys(("locatability_score", "localizability_score", "locatability"), verdict["score"])
    rest = {
        "sub_scores": subscores,
        "scenes": kinds,
        "scene_categories": kinds,
        "clarity": subscores["image_clarity"],
        "text": subscores["amount_of_text"],
        "text_amount": subscores["amount_of_text"],
        "cultural": subscores["distinctiveness_of_cultural_landscape"],
        "cultural_landscape": subscores["distinctiveness_of_cultural_landscape"],
        "natural_landscape": subscores["distinctiveness_of_natural_landscape"],
        "vehicles": subscores["vehicle_and_pedestrian_information"],
        "vehicles_and_pedestrians": subscores["vehicle_and_pedestrian_information"],
        "main_geographical_clues": verdict["clues"],
        "explanation": verdict["reason"],
        "rationale": verdict["reason"],
    }
    return {**same, **scores, **rest, **subscores, **kinds}


def _grade(share: float, maybe: float, yes: float) -> str:
    return "yes" if share >= yes else "maybe" if share >= maybe else "no"


def _ten(value: float) -> float:
    return round(min(10.0, max(0.0, value)), 1)
