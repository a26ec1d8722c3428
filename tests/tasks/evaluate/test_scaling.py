"""Parallel scaling keeps the truth out of the verifier's input."""

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image

from schemas.messages import ChatReply, Message, Usage, image_part, text_part
from tasks.agent.attempt import Attempt
from tasks.agent.environment import Trajectory
from tasks.agent.picture import Picture, open_picture
from tasks.agent.prompt import DIRECT
from tasks.agent.toolbox import Toolbox
from tasks.imaging.images import to_data_uri
from tasks.recipes.thinking_with_map import scaling
from tasks.reward.outcome import point_error

TRUTH = (48.123456, 2.654321)


class Models:
    """Roles that answer as told; keeps every request."""

    def __init__(self, says: dict[str, str]) -> None:
        self.says, self.asked = says, list[tuple[str, Sequence[Message], dict[str, Any]]]()

    async def complete(self, role: str, /, messages: Sequence[Message], *_: Any, **options: Any) -> ChatReply:
        self.asked.append((role, messages, options))
        return ChatReply(self.says[role], usage=Usage(100, 10, 0.0, 1))


@pytest.fixture
def picture() -> Picture:
    out = io.BytesIO()
    Image.new("RGB", (320, 240), "olive").save(out, "JPEG")
    return open_picture(out.getvalue())


async def test_the_verifier_is_sent_neither_label_nor_reward(picture: Picture) -> None:
    chat = Models({"policy": "<answer>48.0, 2.5</answer>", "verifier": '{"lat": 48.1, "lon": 2.6}'})
    found = await scaling.run_scaling(chat, "policy", "verifier", picture, DIRECT, Toolbox(), 4, seed="p")
    first, verifier = (point_error(one, *TRUTH).error_km for one in (found.attempts[0].text, found.verifier_answer))
    assert first is not None and verifier is not None and verifier < first
    options = [options for role, _, options in chat.asked if role == "policy"]
    assert len(options) == 4 and len({one["seed"] for one in options}) == 4
    assert {(one["temperature"], one["top_p"], one["top_k"]) for one in options} == {(1.0, 0.95, 60)}
    [(_, sent, _)] = [one for one in chat.asked if one[0] == "verifier"]
    assert list(sent) == list(found.verifier_input), "what is kept is what was sent, whole"
    text = json.dumps(sent)
    for planted in ("48.123", "2.654", "error_km", "reward", "geoscore", "truth"):
        assert planted not in text
    assert text.count("Candidate ") == 4 and "data:image/jpeg" in text
    with pytest.raises(ValueError, match="2 trajectories"):
        await scaling.run_scaling(chat, "policy", "verifier", picture, DIRECT, Toolbox(), 1)


def test_the_verifier_sees_whole_trajectories_with_the_pictures_of_maps(picture: Picture) -> None:
    out = io.BytesIO()
    Image.new("RGB", (512, 512), "navy").save(out, "JPEG")
    map_jpeg, digest = out.getvalue(), hashlib.sha256(out.getvalue()).hexdigest()
    long = "The bakery's sign says Boulangerie. " * 1000  # three times what was once sent
    call = {"id": "1", "type": "function", "function": {"name": "static_map_query", "arguments": '{"center": [48, 2]}'}}
    messages: list[Message] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": long, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [text_part("a road map"), image_part(digest)]},
    ]
    tried = Attempt("<answer>48.0, 2.0</answer>", Trajectory(tuple(messages), pictures={digest: map_jpeg}), 1.0)
    [sent] = scaling.verifier_messages(picture, "Where is it?", [tried, tried])
    texts = "".join(part["text"] for part in sent["content"] if part["type"] == "text")
    assert texts.startswith("You are a strict geo-localization solver.") and "Where is it?" in texts
    assert texts.count("Boulangerie") == 2000 and texts.count('static_map_query{"center": [48, 2]}') == 2
    shown = [part["image_url"]["url"] for part in sent["content"] if part["type"] == "image_url"]
    assert shown == [to_data_uri(picture.view), to_data_uri(map_jpeg), to_data_uri(map_jpeg)]

    [short] = scaling.verifier_messages(picture, "Where is it?", [tried, tried], 2000)
    texts = "".join(part["text"] for part in short["content"] if part["type"] == "text")
    assert "Boulangerie" not in texts and texts.count("The first 1 parts of this trajectory are left out") == 2
    assert len([part for part in short["content"] if part["type"] == "image_url"]) == 3, "what came last fits"
    assert texts.count("<answer>48.0, 2.0</answer>") == 2
    stored = scaling.as_row(scaling.Scaled((tried, tried), (short,), "", Usage()))["verifier_input_json"]
    assert "are left out" in stored and f"sha256:{digest}" in stored and "base64" not in stored
