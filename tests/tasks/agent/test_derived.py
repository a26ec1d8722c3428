"""Files made of a picture have rows; pictures of maps do not. Boxes are moved to other sizes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from schemas.messages import Message, image_part, text_part
from tasks.agent.stored import derived_rows, with_size

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


@given(
    st.tuples(st.integers(0, 4000), st.integers(0, 2000), st.integers(1, 90), st.integers(1, 40)),
    st.sampled_from([(448, 224), (1000, 500), (2828, 1414)]),
)
def test_a_box_in_another_size_holds_all_that_was_looked_at(box: tuple[int, ...], new: tuple[int, int]) -> None:
    old = (4096, 2048)
    left, top, wide, high = box
    asked = [left, top, left + wide, top + high]
    call = {"function": {"name": "image_zoom_in_tool", "arguments": json.dumps({"bbox_2d": asked})}}
    said = {"role": "assistant", "content": f"I look at {asked}.", "tool_calls": [call]}
    [moved] = with_size([said], old, new)
    found = json.loads(moved["tool_calls"][0]["function"]["arguments"])["bbox_2d"]
    assert moved["content"] == f"I look at {found}."
    for axis, (before, after) in enumerate(zip(asked, found, strict=True)):
        exact = before * new[axis % 2] / old[axis % 2]
        assert (after <= exact + 1e-6 if axis < 2 else after >= exact - 1e-6) and abs(after - exact) <= 1
