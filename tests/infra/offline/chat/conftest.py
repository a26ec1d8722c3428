"""A chat server on a real socket, and pictures drawn for it."""

from __future__ import annotations

import base64
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from PIL import Image, ImageDraw, ImageFont
from starlette.applications import Starlette
from starlette.routing import Mount

from infra.offline.chat import chat_application

KEY = "sk-offline-world"


@pytest.fixture(scope="session")
def chat_url() -> Iterator[str]:
    """The API's base URL, as an OpenAI client is given it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = uvicorn.Config(
        Starlette(routes=[Mount("/openai/v1", chat_application())]), host="127.0.0.1", port=port, log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/openai/v1"
    server.should_exit = True
    thread.join(timeout=60)


@pytest.fixture(scope="session")
def client(chat_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=chat_url, headers={"Authorization": f"Bearer {KEY}"}, timeout=300) as opened:
        yield opened


@pytest.fixture(scope="session")
def ask(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    """Posts a completion and gives the parsed body; extra fields go into the request."""

    def post(model: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        answer = client.post("/chat/completions", json={"model": model, "messages": messages, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return post


def draw(lines: list[str], size: tuple[int, int] = (1000, 500)) -> Image.Image:
    """A street scene with a white board for each line."""
    image = Image.new("RGB", size, (120, 170, 225))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, size[1] // 2, size[0], size[1]), fill=(90, 92, 95))
    for at, line in enumerate(lines):
        top = 60 + at * 70
        font = ImageFont.load_default(34)
        pen.rectangle((80, top, 100 + pen.textlength(line, font=font), top + 52), fill="white")
        pen.text((90, top + 6), line, font=font, fill="black")
    return image


def data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def picture_message(image: Image.Image, text: str = "Where is this?") -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": data_uri(image)}}
    return {"role": "user", "content": [{"type": "text", "text": text}, part]}


@pytest.fixture(scope="session")
def scenes() -> Any:
    """The drawing functions, for tests that make their own pictures."""

    class Scenes:
        draw = staticmethod(draw)
        message = staticmethod(picture_message)
        uri = staticmethod(data_uri)

    return Scenes
