"""The models look at pixels: without the world, its painter and its ids they answer the same, mirrored signs tell them
nothing, and a sign pasted over a picture misleads them."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from typing import Any

import pytest
from PIL import Image, ImageOps

from infra.offline.render import render_jpeg
from infra.offline.world import ImageRecord, World

MODELS = ("agent", "judge", "observer", "answerer-small", "answerer-base", "answerer-large")
ISOLATED = """
import json, sys

class Blocked:
    names = ("world", "place", "ids", "render", "side_streets", "sign_index", "naming", "maps", "services", "server")

    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if parts[:2] == ["infra", "offline"] and len(parts) > 2 and parts[2] in self.names:
            raise ImportError(f"{name} is out of reach")
        return None

sys.meta_path.insert(0, Blocked())
from infra.offline.chat.endpoint import _answer

for body in json.load(sys.stdin):
    replies = _answer(json.dumps(body).encode())[1]
    print(json.dumps([[reply.content, reply.calls] for reply in replies]))
"""


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=29, size=800, pano_width=1536)


@pytest.fixture(scope="module")
def pictures(world: World) -> list[Image.Image]:
    records: list[ImageRecord] = []
    for index in range(world.size):
        records += [record for record in world.images(index)[:1] if record.condition == "clear" and record.is_pano]
        if len(records) == 2:
            break
    return [Image.open(io.BytesIO(render_jpeg(world, record))).convert("RGB") for record in records]


def body(model: str, picture: Image.Image, **fields: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=92)
    uri = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "Where is this?"}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


@pytest.mark.whole
def test_answers_are_the_same_with_the_world_out_of_reach(ask: Any, pictures: list[Image.Image]) -> None:
    bodies = [body(model, picture) for model in MODELS for picture in pictures]
    bodies += [body("agent", pictures[0], temperature=1, seed=seed) for seed in range(3)]
    served = [ask(**each)["choices"][0]["message"]["content"] for each in bodies]
    command = [sys.executable, "-c", ISOLATED]
    done = subprocess.run(command, input=json.dumps(bodies), capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    alone = [json.loads(line)[0][0] for line in done.stdout.splitlines()]
    assert alone == served


def test_a_mirrored_picture_says_less_and_a_pasted_sign_misleads(
    ask: Any, scenes: Any, pictures: list[Image.Image]
) -> None:
    def said(picture: Image.Image, model: str = "answerer-large") -> str:
        return str(ask(**body(model, picture))["choices"][0]["message"]["content"])

    for picture in pictures:
        pasted = picture.copy()
        board = scenes.draw(["Mairie de Villeurbanne"], (620, 160)).crop((70, 50, 600, 130))
        pasted.paste(board, (200, int(picture.height * 0.42)))
        assert "Villeurbanne" in said(pasted) and "Villeurbanne" not in said(picture)
        mirrored = ImageOps.mirror(pasted)
        assert "Villeurbanne" not in said(mirrored)
        side = {"left": "right", "right": "left"}
        seen = [said(each, "observer").partition("Driving side: ")[2].split()[0] for each in (picture, mirrored)]
        assert seen[0] not in side or seen[1] in ("not", side[seen[0]])
