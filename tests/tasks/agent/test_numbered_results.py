"""Tools with numbered results: boxes in thousandths, several queries at once, a search by a crop of the picture."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from schemas.messages import ToolCall
from tasks.agent.picture import open_picture
from tasks.agent.recording import Recording, write_recording
from tasks.agent.stored import with_size
from tasks.agent.toolbox import NOT_RECORDED, Toolbox, ToolResponses
from tasks.agent.tools import ToolContext
from tasks.imaging.images import inspect
from tasks.services.errors import ServiceError
from tasks.services.response_store import FILE, ResponseStore
from tasks.services.search import SearchResult


def jpeg_of(colour: str) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (640, 320), colour).save(data, "JPEG")
    return data.getvalue()


def pages(*names: str) -> list[SearchResult]:
    return [SearchResult(name, f"https://pages.example/{name}", "", 0.5) for name in names]


class Web:
    """Knows some pages for each query, and which crops it was sent."""

    def __init__(self, found: dict[str, list[SearchResult]] | None = None, error: Exception | None = None) -> None:
        self.found, self.error, self.sent = found or {}, error, []

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]:
        if self.error:
            raise self.error
        return self.found.get(query, [])[:max_results]

    async def look_alikes(self, jpeg: bytes, max_results: int = 10, of: str = "") -> list[SearchResult]:
        self.sent.append(jpeg)
        return await self.search("picture", max_results)


async def called(studio: Any, web: Web, name: str, arguments: dict[str, Any]) -> Any:
    toolbox = Toolbox(ToolContext(search=web, image_search=web, search_results=10))
    call = ToolCall("c", name, json.dumps(arguments))
    result = await toolbox.call(call, studio.picture, ("image_zoom", "image_search", "text_search"))
    return result.record, json.loads(result.text), result.picture


async def test_a_crop_is_sent_and_pages_come_back_numbered_in_no_order_of_rank(studio: Any) -> None:
    web = Web({"picture": pages(*"abcdefgh")})
    record, value, picture = await called(studio, web, "image_search", {"bbox_2d": [700, 450, 800, 600]})
    assert record.succeeded and picture is None
    [sent] = web.sent
    facts = inspect(sent)
    assert facts.width / facts.height == pytest.approx(0.1 * 4096 / (0.15 * 2048), abs=0.02)
    assert [row["number"] for row in value["results"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    titles = [row["title"] for row in value["results"]]
    assert sorted(titles) == list("abcdefgh") != titles, "rank says nothing"
    again = await called(studio, web, "image_search", {"bbox_2d": [700, 450, 800, 600]})
    assert again[1] == value, "the same question, the same order"


async def test_several_queries_are_one_list_without_a_page_twice(studio: Any) -> None:
    web = Web({"one": pages(*"abcdefgh"), "two": pages(*"hxyz"), "three": pages("q")})
    record, value, _ = await called(studio, web, "text_search", {"queries": ["one", "two", "three"]})
    titles = sorted(row["title"] for row in value["results"])
    assert record.succeeded and len(titles) == len(set(titles)) == 10, "the best of each query"
    assert {"q", "a", "h", "x"} <= set(titles)


@pytest.mark.parametrize(
    ("name", "arguments", "told", "well_formed"),
    [
        ("image_search", {"bbox_2d": [0, 0, 1001, 10]}, "within 0 and 1000", True),
        ("image_zoom", {"bbox_2d": [10, 0, 5, 10]}, "x1 < x2", True),
        ("image_zoom", {"bbox_2d": [1, 2, 3]}, "four numbers", False),
        ("image_search", {"bbox_2d": [0, 0, float("nan"), 1]}, "bbox_2d", False),
        ("text_search", {"queries": []}, "one to three", True),
        ("text_search", {"queries": ["a", " "]}, "one to three", True),
        ("text_search", {"queries": ["a", "b", "c", "d"]}, "one to three", True),
        ("text_search", {"queries": "a"}, "queries", False),
    ],
)
async def test_what_is_wrong_is_said(
    studio: Any, name: str, arguments: dict[str, Any], told: str, well_formed: bool
) -> None:
    record, value, _ = await called(studio, Web(), name, arguments)
    assert (record.succeeded, record.well_formed, record.outage) == (False, well_formed, "")
    assert told in value["error"]


async def test_an_outage_is_no_mistake_of_the_models(studio: Any) -> None:
    web = Web(error=ServiceError("image_search", "outage", "https://secret.example is down", retryable=True))
    record, value, _ = await called(studio, web, "image_search", {"bbox_2d": [0, 0, 100, 100]})
    assert record.outage == "outage" and "secret" not in json.dumps(value)


def test_boxes_in_thousandths_stay_where_they_are() -> None:
    def asked(name: str) -> list[dict[str, Any]]:
        function = {"name": name, "arguments": '{"bbox_2d": [100, 100, 200, 200]}'}
        call = {"id": "c", "type": "function", "function": function}
        return [{"role": "assistant", "content": "<think>At [1, 2, 3, 4].</think>", "tool_calls": [call]}]

    assert with_size(asked("image_search"), (400, 200), (200, 100)) == asked("image_search")
    assert with_size(asked("image_zoom_in_tool"), (400, 200), (200, 100)) != asked("image_zoom_in_tool")


async def test_what_is_kept_of_a_search_by_a_crop_is_kept_of_its_picture(studio: Any, tmp_path: Path) -> None:
    """The same box in another picture is another question; the same box in this one is asked once."""
    web = Web({"picture": pages("a", "b")})
    store = ResponseStore(tmp_path / FILE)
    toolbox = Toolbox(ToolContext(image_search=web), responses=ToolResponses(store, "texts", "pictures"))
    call = ToolCall("c", "image_search", '{"bbox_2d": [700, 450, 800, 600]}')
    other = open_picture(jpeg_of("blue"))
    shown = (studio.picture, studio.picture, other)
    texts = [(await toolbox.call(call, picture, ("image_search",))).text for picture in shown]
    assert len(web.sent) == 2 and texts[0] == texts[1] == texts[2]
    assert studio.picture.original_sha256 not in texts[0], "no model sees what it is kept by"
    written = write_recording(tmp_path, "texts", tmp_path / "tools.sqlite", "pictures")
    assert (written.answers, written.of_others) == (2, 0)
    recorded = Toolbox(responses=Recording(tmp_path / "tools.sqlite", (0.7, 0.5)))
    near = ToolCall("c", "image_search", '{"bbox_2d": [700, 450, 800, 590]}')
    answers = [await recorded.call(one, studio.picture, ("image_search",)) for one in (call, near)]
    assert [json.loads(one.text)["results"] for one in answers] == [json.loads(texts[0])["results"]] * 2
    assert [round(one.record.likeness, 2) for one in answers] == [1.0, 0.93]
    whole = replace(call, arguments='{"bbox_2d": [0, 0, 1000, 1000]}')
    missed = await recorded.call(whole, studio.picture, ("image_search",))
    assert missed.record.error == NOT_RECORDED and missed.record.executed
