"""A judge and a geocoder on a real socket, and pictures for them."""

import io
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from PIL import Image, ImageDraw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from infra.offline.chat import chat_application
from schemas.settings.services import ServicesSettings
from tasks.curate.verdict import Scenes, SubScores
from tasks.services import Connections, connect

PARIS = {"country": "France", "country_code": "fr", "state": "Île-de-France", "city": "Paris"}


def verdict(kind: str = "localizable", score: float = 6.0) -> str:
    return json.dumps(
        {
            "class": kind,
            "reason": "A shop sign in French.",
            "score": score,
            "sub_scores": dict.fromkeys(SubScores.model_fields, 5),
            "scenes": dict.fromkeys(Scenes.model_fields, "no"),
        }
    )


@dataclass
class Town:
    """A judge and a geocoder that say what the test wants; the last answer repeats."""

    answers: list[str] = field(default_factory=lambda: [verdict()])
    address: dict[str, str] | None = field(default_factory=lambda: dict(PARIS))
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    located: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        if self.status != 200:
            return JSONResponse({"error": {"message": "down"}}, self.status)
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    async def reverse(self, request: Request) -> Response:
        self.located.append(dict(request.query_params))
        if self.address is None:
            return JSONResponse({"error": "Unable to geocode"})
        return JSONResponse({"lat": "48.8", "lon": "2.3", "display_name": "x", "address": self.address})

    verdict = staticmethod(verdict)

    @staticmethod
    def street(text: str = "", size: tuple[int, int] = (900, 600)) -> bytes:
        """A JPEG of a road under a sky, with a sign if it has a text."""
        image = Image.new("RGB", size, (150, 190, 230))
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, size[1] * 0.6, *size), fill=(90, 90, 92))
        if text:
            draw.rectangle((120, 120, 780, 260), fill="white")
            draw.text((140, 140), text, fill="black", font_size=72)
        out = io.BytesIO()
        image.save(out, "JPEG", quality=92, comment=b"48.8566,2.3522")
        return out.getvalue()

    @staticmethod
    def scene(number: int, size: tuple[int, int] = (480, 320)) -> bytes:
        """A JPEG of house fronts with windows, another one for every number."""
        dice = random.Random(number)
        image = Image.new("RGB", size, (150, 190, 230))
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, size[1] * 0.75, *size), fill=(90, 90, 92))
        for left in range(0, size[0], dice.choice((40, 60, 80))):
            top = dice.randrange(20, size[1] // 2)
            draw.rectangle((left, top, left + 38, size[1] * 0.75), fill=tuple(dice.choices(range(256), k=3)))
            for down in range(top + 6, int(size[1] * 0.7), 18):
                draw.rectangle((left + 6, down, left + 14, down + 9), fill=tuple(dice.choices(range(256), k=3)))
        out = io.BytesIO()
        image.save(out, "JPEG", quality=92)
        return out.getvalue()

    def connections(self) -> Connections:
        quick = {"backoff_s": 0, "max_attempts": 2}
        services = ServicesSettings(
            chat={"base_url": f"{self.url}/v1", **quick},  # type: ignore[arg-type]
            geocoder={"base_url": self.url, **quick},  # type: ignore[arg-type]
        )
        return connect(services, {})


@pytest.fixture(scope="session")
def server() -> Iterator[Town]:
    service = Town()
    routes = [
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/reverse", service.reverse),
        Mount("/openai/v1", chat_application()),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        thread.join(0.01)
    service.url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    yield service
    running.should_exit = True
    thread.join()


@pytest.fixture
def town(server: Town) -> Town:
    """The server, as if nothing had been asked of it before."""
    server.__dict__.update(vars(Town(url=server.url)))
    return server
