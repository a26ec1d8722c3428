"""Conversations as steps of a page."""

import json

from tasks.review.site.transcript import steps_of


def test_a_box_is_a_share_of_the_view_that_the_model_was_shown() -> None:
    call = {"function": {"name": "image_zoom_in_tool", "arguments": json.dumps({"bbox_2d": [100, 50, 300, 100]})}}
    messages = [{"role": "assistant", "content": "<think>closer</think>", "tool_calls": [call]}]
    thought, zoom = steps_of(json.dumps(messages), 400, 200)
    assert thought == {"kind": "thought", "text": "closer"}
    assert zoom["box"] == [0.25, 0.25, 0.5, 0.25]
