"""The observer: looks at a picture and writes what it sees, from the whole scene down to single lines of text."""

import random

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.protocol import ChatRequest
from infra.offline.chat.reply import Reply
from infra.offline.chat.scene import Scene, cover_boxes
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
        f"- Sky: {scene.sky}, {percent(scene.sky_share)} of the picture.",
        f"- Vegetation: {amount(scene.green_share)} ({percent(scene.green_share)} green); ground: {scene.ground}.",
        "",
        "## Infrastructure",
        f"- Road: {'paved' if scene.road_share > 0.08 else 'not clear'}; centre line: {scene.centre or 'not seen'};"
        f" edge lines: {scene.edge or 'not seen'}.",
        f"- Driving side: {driving_of(scene)}.",
        f"- Buildings: {amount(scene.building_share)}.",
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
    if scene.brightness < 0.16:
        return "very dark"
    return "dim" if scene.brightness < 0.3 else "daylight"


def clarity_of(scene: Scene) -> str:
    if scene.sharpness < 0.25:
        return "badly blurred"
    return "soft" if scene.sharpness < 0.5 else "sharp"


def driving_of(scene: Scene) -> str:
    if scene.side is None:
        return "not clear"
    return f"{scene.side} ({scene.side_reason}, confidence {scene.side_confidence:.2f})"


def amount(share: float) -> str:
    for limit, word in ((0.01, "none"), (0.08, "a little"), (0.25, "some")):
        if share < limit:
            return word
    return "much"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
