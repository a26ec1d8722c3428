"""Which stored files of a conversation were made of its picture: the view the model is shown, and what zooms showed."""

from collections.abc import Sequence

from schemas.messages import Message, image_references
from tasks.runtime.runner import Row, digest

ZOOMS = ("image_zoom_in_tool", "image_zoom_tool")  # pictures of other tools, such as maps, are not made of the picture


def derived_rows(trajectory_id: str, image_id: str, messages: Sequence[Message]) -> list[Row]:
    """A row for each such file."""
    zooms = {
        call["id"]
        for message in messages
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] in ZOOMS
    }
    kinds: dict[tuple[str, str], str] = {}
    for message in messages:
        if message["role"] == "tool" and message.get("tool_call_id") not in zooms:
            continue
        for reference in image_references([message]):
            kinds.setdefault(reference, "crop" if message["role"] == "tool" else "view")
    return [
        {
            "derived_id": digest(trajectory_id, sha256),
            "sha256": sha256,
            "extension": extension,
            "image_id": image_id,
            "trajectory_id": trajectory_id,
            "kind": kind,
        }
        for (sha256, extension), kind in kinds.items()
    ]
