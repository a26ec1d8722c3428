"""The observer: looks at a picture and writes what it sees, from the whole scene down to single lines of text."""

import random
import re

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.protocol import ChatRequest, Picture, Reply
from infra.offline.chat.scene import Scene, cover_boxes, grade
from infra.offline.chat.sight import READABLE_SCORE, SeenPicture, look_at_picture


def observer_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """A description of the last picture sent; with a response schema, the same facts as JSON."""
    picture = request.last_picture()
    seen = look_at_picture(picture)
    if request.response_schema is None:
        return Reply(describe(seen))
    boxes = _boxes(request.messages[-1].text, picture, seen)
    text = [line.text for line in seen.readable]
    return Reply(fill_schema(request.response_schema, {"description": describe(seen), "text": text, "boxes": boxes}))


def _boxes(question: str, picture: Picture, seen: SeenPicture) -> list[list[int]]:
    """Boxes of what is requested, in its words; by default of writing."""
    if "part of the sky" in question or "tree, bush" in question:
        return cover_boxes(picture.rgb(), "sky" if "part of the sky" in question else "plants")
    if "foreground" in question:
        return [[0, round(0.8 * seen.height), seen.width, seen.height]]
    if "pole" in question:
        return []  # its eyes do not tell them from tree trunks
    with_digits = "licence plate" in question
    return [list(line.box) for line in seen.readable if not with_digits or re.search(r"\d", line.text)]


def describe(seen: SeenPicture) -> str:
    """Three sections, coarse to fine: environment, infrastructure, text with boxes."""
    scene = seen.scene
    parts = [
        "## Environment",
        f"- View: {scene.view}, {seen.width} x {seen.height} pixels.",
        f"- Light: {light_of(scene)}; {clarity_of(scene)}.",
        f"- Sky: {scene.sky}, {100 * scene.sky_share:.0f} % of the picture.",
        f"- Vegetation: {_amount(scene.green_share)} ({100 * scene.green_share:.0f} % green); ground: {scene.ground}.",
        "",
        "## Infrastructure",
        f"- Road: {'paved' if scene.road_share > 0.08 else 'not clear'}; centre line: {scene.centre or 'not seen'};"
        f" edge lines: {scene.edge or 'not seen'}.",
        f"- Driving side: {_driving(scene)}.",
        f"- Buildings: {_amount(scene.building_share)}.",
        f"- Direction sign: {scene.sign + ' background' if scene.sign else 'none seen'}.",
        f"- Landmark: {scene.landmark or 'none that stands out'}.",
        "",
        "## Text",
    ]
    for line in sorted(seen.lines, key=lambda line: (-(line.score >= READABLE_SCORE), -line.height)):
        words = f'"{line.text}"' if line in seen.readable else "(writing I cannot make out)"
        parts.append(f"- {words} bbox_2d {list(line.box)} confidence {line.score:.2f} height {line.height} px")
    return "\n".join(parts if seen.lines else [*parts, "- No writing is visible."])


def light_of(scene: Scene) -> str:
    return grade(scene.brightness, "very_dark dim daylight", 0.16, 0.3).replace("_", " ")


def clarity_of(scene: Scene) -> str:
    return grade(scene.sharpness, "badly_blurred soft sharp", 0.25, 0.5).replace("_", " ")


def _driving(scene: Scene) -> str:
    if scene.side is None:
        return "not clear"
    other = {"left": "right", "right": "left"}[scene.side]
    reason = f"the road reaches farther on the {other} of the camera"
    return f"{scene.side} ({reason}, confidence {scene.side_confidence:.2f})"


def _amount(share: float) -> str:
    return grade(share, "none a_little some much", 0.01, 0.08, 0.25).replace("_", " ")
