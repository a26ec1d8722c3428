"""Parallel scaling keeps the truth out of the verifier's input; the swarm follows smileGeo's rules and learns."""

import hashlib
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from schemas.messages import ChatReply, Message, Usage, image_part, text_part
from tasks.agent.attempt import Attempt
from tasks.agent.environment import Trajectory
from tasks.agent.picture import Picture, open_picture
from tasks.agent.prompt import DIRECT
from tasks.agent.toolbox import Toolbox
from tasks.imaging.images import to_data_uri
from tasks.recipes.smilegeo.swarm import Said, Swarm, conclude, elect, group_answers, walk_reviewers
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


def said(agent: int, lat: float | None) -> Said:
    return Said(agent, "I do not know" if lat is None else f"<answer>{lat}, 10.0</answer>")


def test_consensus_majority_and_the_first_elected() -> None:
    assert conclude([said(0, 1.0), said(1, 1.1)])[1] == "consensus"
    assert conclude([said(0, 9.0), said(1, 1.0), said(2, 1.1)]) == (said(1, 1.0).text, "majority")
    assert conclude([said(0, 9.0), said(1, 1.0)]) == (said(0, 9.0).text, "first_elected")
    assert conclude([said(0, None), said(1, None)])[1] == "first_elected"
    assert [len(group) for group in group_answers([said(0, None), said(1, None), said(2, 1.0)])] == [1, 1, 1]


def test_election_and_random_walk() -> None:
    assert elect([0.1, 0.9, 0.5, 0.9], 2) == [1, 3]
    links = np.ones((4, 4)) - np.eye(4)
    links[0] = [0, 0, 5, 0]  # from the first agent only the third is reached at once
    rng = random.Random(1)
    seen = [walk_reviewers(links, 0, 2, rng) for _ in range(50)]
    assert all(one[0] == 2 and len(set(one)) == 2 and 0 not in one for one in seen)
    assert walk_reviewers(np.zeros((3, 3)), 0, 2, rng), "without links any other agent may review"


async def test_a_swarm_asks_less_than_a_debate_and_stops_at_consensus(picture: Picture) -> None:
    agents = [f"a{i}" for i in range(6)]
    chat = Models(dict.fromkeys(agents, "<answer>48.0, 2.5</answer> Confidence: 80%"))
    swarm = Swarm(chat, agents)
    links = np.ones((6, 6)) - np.eye(6)
    found = await swarm.locate(picture, [0.5] * 6, links, seed=1)
    assert found.how == "consensus" and found.rounds == 0 and found.answerers == [0, 1]
    assert all(len(reviewers) == 2 for reviewers in found.reviews.values())
    debate = await swarm.debate(picture, rounds=2, seed=1)
    assert found.tokens < debate.tokens == 18 * 110 and (await swarm.single(picture, 0)).tokens == 110
    chat.says["a1"] = "<answer>10.0, 10.0</answer>"
    split = await Swarm(chat, agents, rounds=3).locate(picture, [0.5] * 6, links, seed=1)
    assert (split.how, split.rounds) == ("first_elected", 3)
    long = Swarm(chat, agents, context_chars=50)
    await long.locate(picture, [0.5] * 6, links, seed=2)
    assert len(long._cut(["x" * 500])) == 50


def test_links_and_election_are_learned_from_outcomes(tmp_path: Path) -> None:
    from tasks.recipes.smilegeo.learning import ElectionNetwork, Estimate, link_factor, load, save, train

    assert [link_factor(True, tt, printed=True) for tt in (1, 2, 4)] == [1.0, 0.75, 0.625]
    assert link_factor(False, 2, printed=True) == 0.75
    assert all(link_factor(True, tt) > 1 > link_factor(False, tt) for tt in range(1, 9)), "as the text says"
    estimates = []
    for _ in range(8):
        one = Estimate(4)
        for _ in range(3):
            one.observe({0: True, 1: False}, {0: [2], 1: [3]})
        estimates.append(one)
    assert estimates[0].election == [1.0, 0.0, 0.5, 0.5]
    assert estimates[0].links[0, 2] > 1 > estimates[0].links[1, 3] and estimates[0].links[2, 3] == 1
    pictures = np.random.default_rng(0).random((8, 12), dtype=np.float32)
    network = ElectionNetwork(4, 12, width=32)
    losses = train(network, pictures, estimates, steps=150, rate=1e-2)
    assert losses[-1] < losses[0] / 3
    save(network, tmp_path / "swarm.pt")
    import torch

    election, links = load(tmp_path / "swarm.pt")(torch.from_numpy(pictures))
    assert election[0].argmax() == 0 and election[0].argmin() == 1
    assert torch.allclose(links.sum(-1), torch.ones(8, 4), atol=1e-5) and float(links[0].diagonal().max()) == 0
