"""Files made of a picture have rows; pictures of maps do not."""

from schemas.messages import Message, image_part, text_part
from tasks.agent.stored import derived_rows

VIEW, CROP, MAP = "a" * 64, "b" * 64, "c" * 64


def call(number: int, name: str) -> Message:
    function = {"name": name, "arguments": "{}"}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answer(number: int, sha256: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": [text_part("{}"), image_part(sha256)]}


def test_views_and_crops_have_a_row_and_maps_have_none() -> None:
    messages = [
        {"role": "system", "content": "words"},
        {"role": "user", "content": [image_part(VIEW), text_part("where?")]},
        *(call(1, "image_zoom_in_tool"), answer(1, CROP), call(2, "static_map"), answer(2, MAP)),
        *(call(3, "image_zoom_in_tool"), answer(3, CROP), {"role": "assistant", "content": "there"}),
    ]
    rows = derived_rows("t1", "i1", messages)
    assert [(row["sha256"], row["kind"], row["image_id"]) for row in rows] == [
        (VIEW, "view", "i1"),
        (CROP, "crop", "i1"),
    ]
    assert (
        len({row["derived_id"] for row in rows} | {row["derived_id"] for row in derived_rows("t2", "i1", messages)})
        == 4
    )
