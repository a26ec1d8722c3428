"""One rendering: a stored sample, TRL's rollout prompt and a request to our server are the same bytes."""

import asyncio
import io
import json
import random
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trl import GRPOTrainer

from infra.serve.request import ChatRequest, conversation
from schemas.messages import ChatReply, ToolCall, image_reference
from schemas.settings.train import TinySettings
from tasks.agent.environment import Environment
from tasks.agent.picture import open_picture
from tasks.agent.prompt import Budgets
from tasks.agent.render import render_text, training_messages
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import ToolContext
from tasks.agent.trl_environment import rollout_class
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES
from tasks.train.encoding import Pictures
from tasks.train.tiny import build_processor

PIXELS = (784, 28 * 28 * 4)
WORDS = ["sign", "Rue d'Été", "東京", "مطعم", '"quoted"', "a\nline", "{brace}", "\\n", "5 < 6", "`tick`", "🦘", "</b>"]


@pytest.fixture(scope="module")
def processor():
    tiny = TinySettings(vocabulary=400, hidden=64, layers=1, intermediate=64, vision_hidden=32, vision_layers=1)
    return build_processor(["Where was this picture taken?"], tiny, *PIXELS)


@pytest.fixture(scope="module")
def picture():
    data = io.BytesIO()
    Image.new("RGB", (120, 80), "teal").save(data, "JPEG")
    return open_picture(data.getvalue(), max_pixels=PIXELS[1], min_pixels=PIXELS[0])


def trl_of(processor: Any, tools: list[Any]) -> Any:
    """What GRPOTrainer's own methods need of a trainer to render a prompt."""
    return SimpleNamespace(
        processing_class=processor,
        _tokenizer=processor.tokenizer,
        _is_vlm=True,
        tools=tools,
        environment_factories={None: None},
        _batch_environments=[None],
        _env_tools={None: tools},
        chat_template=processor.chat_template,
        chat_template_kwargs={},
    )


async def play(environment: Environment, draw: random.Random) -> None:
    """Random replies until the environment ends: one or two calls a turn, odd words, then an answer."""

    def words() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))

    for _ in range(draw.randint(0, 4)):
        calls = []
        for _ in range(draw.randint(1, 2)):
            name = draw.choice(environment.prompt.tools)
            if "zoom" in name:
                calls.append(ToolCall("x", name, json.dumps({"bbox_2d": [0, 0, draw.randint(5, 40), 30]})))
            elif "map_query" in name:
                calls.append(ToolCall("x", name, '{"center":[1.5,2.5]}'))
            else:
                field = next(iter(environment.prompt.tool_schemas()[0]["function"]["parameters"]["properties"]))
                calls.append(ToolCall("x", name, json.dumps({field: words()}, ensure_ascii=draw.random() < 0.5)))
        if (await environment.step(ChatReply(f"<think>{words()}</think>", tuple(calls)))).done:
            return
    await environment.step(ChatReply(f"<think>{words()}</think><answer>{words()}</answer>"))


def opened(messages: list[dict[str, Any]], pictures: dict[str, bytes]) -> list[dict[str, Any]]:
    """Stored messages as TRL takes them: every content a list, every picture a PIL image."""

    def part_of(part: dict[str, Any]) -> dict[str, Any]:
        reference = image_reference(part)
        if reference is None:
            return part
        return {"type": "image", "image": Image.open(io.BytesIO(pictures[reference[0]]))}

    def parts(content: Any) -> list[dict[str, Any]]:
        return [
            part_of(part) for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
        ]

    return [{**message, "content": parts(message["content"])} for message in messages]


def plain(text: str) -> str:
    return re.sub(r"(<\|image_pad\|>)+", "<|image_pad|>", text)


@pytest.mark.parametrize("trajectories", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)])
def test_sample_rollout_and_request_are_byte_equal(studio, processor, picture, trajectories):
    toolbox = Toolbox(ToolContext(search=studio.web, geocoder=studio.maps))
    for number in trajectories:
        draw = random.Random(number)
        recipe = RECIPES[draw.choice(["spotagent", "geovista", "thinking-with-map"])].prompt
        environment = Environment(picture, toolbox, recipe, Budgets(calls=20, turns=20))
        asyncio.run(play(environment, draw))
        stored, tools = environment.messages, environment.offered()

        sample = render_text(training_messages(stored, tools))
        trainer_format = opened(training_messages(stored, tools), environment.pictures)
        assert processor.apply_chat_template(trainer_format, tokenize=False) == sample

        prompt_at = [i for i, message in enumerate(stored) if message["role"] == "assistant"]
        request = environment.request()
        rollout = rollout_class(recipe)(toolbox, recipe, lambda row: picture)
        methods = [getattr(rollout, name) for name in sorted(recipe.tools)]
        trl = trl_of(processor, methods)
        ids = GRPOTrainer._tokenize_prompts(trl, [opened(stored[:2], environment.pictures)])[0][0]
        rolled = processor.tokenizer.decode(ids)
        for turn, at in enumerate(prompt_at):
            asked = ChatRequest.model_validate({"model": "m", "messages": request[:at], "tools": tools})
            messages = conversation(asked, *PIXELS)
            served = processor.apply_chat_template(
                messages, tools=asked.tools, tokenize=False, add_generation_prompt=True
            )
            assert sample.startswith(served), number
            assert plain(rolled) == served, number
            spoken = sample[len(served) :].partition("<|im_end|>")[0]
            if turn + 1 < len(prompt_at):
                answered = [m | {"name": "x"} for m in stored[at + 1 : prompt_at[turn + 1]]]
                suffix = GRPOTrainer._get_tool_suffix_ids(trl, opened(answered, environment.pictures))
                rolled += spoken + "<|im_end|>" + processor.tokenizer.decode(suffix)


def test_a_picture_in_the_trained_size_reaches_the_model_as_in_training(tmp_path: Any) -> None:
    """What a client shows of an original, and our server opens, has the pixels that training opened."""
    noise = np.random.default_rng(0).integers(0, 255, (90, 160, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).resize((1600, 900)).save(data, "JPEG")
    store = Lake(tmp_path / "lake").images
    trained = Pictures(store, *PIXELS).open(store.put(data.getvalue(), "jpg"), "jpg")
    shown = open_picture(data.getvalue(), max_pixels=PIXELS[1], min_pixels=PIXELS[0])
    sent = [{"type": "image_url", "image_url": {"url": shown.view_uri}}]
    asked = {"model": "m", "messages": [{"role": "user", "content": sent}]}
    [message] = conversation(ChatRequest.model_validate(asked), *PIXELS)
    [part] = message["content"]
    assert np.array_equal(np.asarray(part["image"]), np.asarray(trained))
