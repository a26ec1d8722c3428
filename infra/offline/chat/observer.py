"""The observer: looks at a picture and writes what it sees, from the whole scene down to single lines of text."""

import random

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.protocol import ChatRequest, Reply
from infra.offline.chat.scene import Scene, cover_boxes, grade
from infra.offline.chat.sight import READABLE_SCORE, SeenPicture, look_at_picture

COVERS = {"sky": "part of the sky", "plants": "tree, bush"}  # by the words in which they are requested


def observer_reply(request: ChatRequest, dice: random.Random) -> Reply:
    """A description of the last picture sent; with a response schema, the same facts as JSON."""
    seen = look_at_picture(request.last_picture())
    if request.response_schema is not None:
        question = request.messages[-1].text
        facts = facts_of(seen, question)
        for what, words in COVERS.items():
            if words in question:
                facts["boxes"] = cover_boxes(request.last_picture().rgb(), what)
        return Reply(fill_schema(request.response_schema, facts))
    return Reply(describe(seen))


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
    lines = sorted(seen.lines, key=lambda line: (-(line.score >= READABLE_SCORE), -line.height))
    for line in lines:
        box = ", ".join(str(side) for side in line.box)
        clear = line.score >= READABLE_SCORE and len(line.text) >= 2
        words = f'"{line.text}"' if clear else "(writing I cannot make out)"
        parts.append(f"- {words} bbox_2d [{box}] confidence {line.score:.2f} height {line.height} px")
    if not lines:
        parts.append("- No writing is visible.")
    return "\n".join(parts)


def facts_of(seen: SeenPicture, question: str = "") -> dict[str, object]:
    """The same observation as named values; boxes are those of what is requested, by default of writing."""
    scene = seen.scene
    boxes = [list(line.box) for line in seen.readable]
    if "foreground" in question:
        boxes = [[0, round(0.8 * seen.height), seen.width, seen.height]]
    elif "licence plate" in question:
        boxes = [list(line.box) for line in seen.readable if any(char.isdigit() for char in line.text)]
    elif "pole" in question:
        boxes = []  # its eyes do not tell them from tree trunks
    return {
        "description": describe(seen),
        "view": scene.view,
        "driving_side": scene.side or "unknown",
        "centre_line": scene.centre or "unknown",
        "text": [line.text for line in seen.readable],
        "boxes": boxes,
        # a front that fills the picture, with neither a road nor writing
        "home": scene.building_share > 0.2 and scene.road_share < 0.08 and not seen.lines,
    }


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
