"""What `geofix locate` shows of a tool's answer, in the terminal and on its page."""

import json
from types import SimpleNamespace

import pytest

from flows.cli.locating import Terminal, result_lines
from tasks.agent.page import _message
from tasks.agent.readable import answer_of, arguments_of
from tasks.agent.toolbox import as_text

SEARCH = '{"results": [{"title": "A", "url": "http://a", "content": "words"}, {"title": "B"}]}'
PLACES = '{"results": [{"lat": 48.85661, "lon": 2.3522, "name": "Paris", "display_name": "Paris, France"}]}'
CAFE = {"id": "1", "name": "Café", "kind": "cafe", "address": "Rue 1", "district": "Paris", "lat": 1, "lon": 2}


def test_a_line_for_each_result_with_title_address_and_words() -> None:
    assert result_lines(SEARCH) == ["A · http://a: words", "B"]
    assert result_lines(PLACES) == ["Paris, France · 48.85661, 2.35220"]
    for cafe in ({"pois": [CAFE]}, {"poi": CAFE}):
        assert result_lines(json.dumps(cafe)) == ["Café · 1.00000, 2.00000: cafe · Rue 1, Paris"]
    crop = [{"type": "text", "text": '{"bbox_2d": [1, 2, 3, 4]}'}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert result_lines(crop) == ["the region [1, 2, 3, 4], enlarged"]
    assert result_lines('{"results": []}') == ["nothing found"] and result_lines("no JSON") == ["no JSON"]
    assert result_lines('{"error": "query: Field required"}') == ["query: Field required"]
    assert result_lines(json.dumps({"tips": [{"name": "x"}] * 10}))[-1] == "and 2 more"
    assert [len(line) for line in result_lines("x" * 5000)] == [300]


def test_why_there_is_no_radius_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    for radius, km in (("never calibrated", None), ("never calibrated", None), ("within 3.0 km with 90 %", 3.0)):
        terminal.end(SimpleNamespace(map_link="", problem="nothing", radius=radius, radius_km=km))  # type: ignore[arg-type]
    assert capsys.readouterr().out.split("\n")[:-1] == [
        *("no place: nothing", "never calibrated", "no place: nothing", "no place: nothing", "within 3.0 km with 90 %")
    ]


def test_what_is_no_known_form_is_shown_too() -> None:
    for odd in ("[]", "3", '"x"', "{}", '{"a": {"b": [1]}}', "[" * 5000, '{"results": [[1], null, {"x": {}}]}'):
        assert isinstance(result_lines(odd), list)
    assert arguments_of('{"query": "x"}') == "x" and arguments_of("[") == "["
    assert arguments_of('{"keyword": "cafe", "city": "Paris"}') == "keyword cafe, city Paris"


def test_the_page_shows_no_json_and_no_markup_of_others() -> None:
    shown = _message({"role": "tool", "content": SEARCH.replace("words", "<script>")}, {})
    assert "{" not in shown and "<script>" not in shown and "<b>A</b>" in shown and "&lt;script&gt;" in shown


def test_an_answer_is_shown_without_tags_and_braces() -> None:
    assert answer_of('<answer>{"lat": 1.5, "city": "Köln"}</answer>') == "lat: 1.5\ncity: Köln"
    assert answer_of("<answer>\nCountry: Italy\n</answer>") == "Country: Italy"


def test_what_is_too_long_for_a_model_loses_entries_before_it_loses_its_words() -> None:
    """Ten places used to be cut to five letters each, with which no model can do anything."""
    places = {"pois": [{**CAFE, "name": f"Café number {number} on the long street"} for number in range(40)]}
    kept = json.loads(as_text(places, 2000))["pois"]
    assert 4 < len(kept) < 40 and kept == places["pois"][: len(kept)]
    assert len(as_text({"rows": [{"x": "y" * 500}] * 100_000}, 2000)) <= 2000
    assert "error" in as_text({f"k{number}": 1 for number in range(9999)}, 2000)
