"""Servers that are not ours, and a client that is not ours: `transformers serve`, and `openai` against infra/serve."""

import base64
import contextlib
import io
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.training_lake import tiny_llava
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.services import Chat, connect

pytestmark = pytest.mark.slow
START_S = 900


def question() -> list[dict[str, Any]]:
    data = io.BytesIO()
    Image.new("RGB", (200, 100), "navy").save(data, "JPEG")
    url = "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
    picture = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": "Where was this picture taken?"}]}]


@contextmanager
def served(command: list[str], health: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            with contextlib.suppress(OSError), urllib.request.urlopen(url + health, timeout=2) as answer:
                if answer.status == 200:
                    break
            time.sleep(0.3)
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(300)


async def test_transformers_serve_shows_our_pictures_to_a_model_that_sees(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llava"
    # This server loads the image processor of Qwen2.5-VL only with torchvision (for its videos), which is not installed
    # beside a torch without CUDA. LLaVA's has a form that needs none.
    tiny_llava(folder)
    command = [str(Path(sys.executable).parent / "transformers"), "serve", "--host", "127.0.0.1"]
    with served(command, "/health") as base_url:
        endpoint = {"base_url": base_url, "timeout_s": 170, "total_timeout_s": 170, "max_attempts": 1}
        role = {"endpoint": "hf", "model": str(folder)}
        models = ModelsSettings.model_validate({"endpoints": {"hf": endpoint}, "roles": {"answerer-base": role}})
        chat = Chat(connect(ServicesSettings(), {}, models=models).chat)
        asked = question()
        reply = await chat.complete("answerer-base", asked, max_tokens=8, temperature=0, seed=1)
        words = [{"role": "user", "content": asked[0]["content"][1:]}]
        blind = await chat.complete("answerer-base", words, max_tokens=8, temperature=0, seed=1)
        await chat.close()
    assert isinstance(reply.text, str) and reply.finish_reason in ("stop", "length")
    assert reply.usage.completion_tokens > 0 and reply.cost_usd is None, "nothing says what it costs"
    assert reply.usage.prompt_tokens == blind.usage.prompt_tokens + 16, "4 x 4 patches of the picture"


async def test_the_openai_client_is_answered_by_our_server(checkpoint: Path) -> None:
    import openai

    with served([sys.executable, "-m", "infra.serve", "--model", str(checkpoint)], "/health") as base_url:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        assert [model.id async for model in client.models.list()] == ["tiny-model"]
        messages: Any = question()
        done = await client.chat.completions.create(model="tiny-model", messages=messages, max_tokens=8, seed=1)
        assert done.choices[0].finish_reason in ("stop", "length") and done.usage is not None
        assert 0 < done.usage.completion_tokens <= 8
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-9", messages=messages)
        await client.close()
