"""Schemas and checks follow from signatures and docstrings."""

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.agent.toolbox import tool_schemas
from tasks.agent.tools import TOOLS
from tasks.agent.toolspec import BadArguments, json_type, tool_spec
from tasks.recipes.recipe import RECIPES
from tasks.recipes.reverse import TOOLS as REVERSE
from tasks.recipes.spotagent import TOOLS as SPOTAGENT
from tasks.recipes.thinking_with_map import TOOLS as THINKING_WITH_MAP


def test_the_tools_of_the_papers_with_their_parameters():
    assert {name: list(spec.parameters) for name, spec in TOOLS.items()} == {
        "image_zoom_in_tool": ["bbox_2d"],
        "search_web": ["query"],
        "maps_geocode": ["address"],
        "image_zoom_tool": ["bbox_2d"],
        "poi_input_tips": ["text"],
        "poi_keyword_search": ["keyword", "city"],
        "poi_detail_query": ["id"],
        "static_map_query": ["center", "zoom"],
        "satellite_map_query": ["center", "zoom"],
        "image_zoom": ["bbox_2d"],
        "image_search": ["bbox_2d"],
        "text_search": ["queries"],
    }
    assert {*SPOTAGENT, *THINKING_WITH_MAP, *REVERSE} == set(TOOLS)


def test_no_recipe_has_boxes_in_pixels_and_in_thousandths():
    """Stored boxes in pixels move with the size of a picture, and those in thousandths do not."""
    for recipe in RECIPES.values():
        boxes = {TOOLS[name].thousandths for name in recipe.prompt.tools if "bbox_2d" in TOOLS[name].parameters}
        assert len(boxes) <= 1, recipe.name


@pytest.mark.parametrize("name", TOOLS)
def test_trl_derives_the_same_schema_from_a_method(name):
    """TRL reads an environment's methods with transformers' own parser."""
    from transformers.utils import get_json_schema

    async def act(self, **arguments):
        return arguments

    class Environment:
        pass

    setattr(Environment, name, TOOLS[name].method(act))
    assert get_json_schema(getattr(Environment(), name)) == TOOLS[name].openai()
    assert json.dumps(get_json_schema(getattr(Environment(), name))) == json.dumps(TOOLS[name].openai())


def test_mcp_and_openai_describe_the_same_arguments():
    for spec in TOOLS.values():
        assert spec.openai()["function"]["parameters"] == spec.input_schema()
    assert [one["function"]["name"] for one in tool_schemas(THINKING_WITH_MAP)] == sorted(THINKING_WITH_MAP)


def test_openai_schema():
    schema = TOOLS["image_zoom_in_tool"].openai()
    assert schema["type"] == "function" and schema["function"]["name"] == "image_zoom_in_tool"
    parameters = schema["function"]["parameters"]
    box = parameters["properties"]["bbox_2d"]
    assert box.pop("description").startswith("The region as [x1, y1, x2, y2]")
    assert box == {"type": "array", "items": {"type": "number"}}
    assert parameters["required"] == ["bbox_2d"]
    assert schema["function"]["description"].startswith("Crop and zoom")


def test_docstring_continuations_defaults_and_choices():
    def look(where: Literal["left", "right"], times: int = 1, note: str | None = None) -> None:
        """Look somewhere.

        More words.

        Args:
            where: The side,
                as seen from here.
            times (int): How often.
            note: Anything: even colons.

        Returns:
            nothing: at all
        """

    function = tool_spec(look).openai()["function"]
    assert function["description"] == "Look somewhere. More words."
    assert function["parameters"]["required"] == ["where"]
    properties = function["parameters"]["properties"]
    assert properties["where"] == {
        "type": "string",
        "enum": ["left", "right"],
        "description": "The side, as seen from here.",
    }
    assert properties["note"] == {"type": "string", "nullable": True, "description": "Anything: even colons."}
    assert tool_spec(look).arguments('{"where": "left"}') == {"where": "left", "times": 1, "note": None}


def test_what_is_not_said_is_refused_when_the_tool_is_made():
    def silent(a: int) -> None: ...

    def unexplained(a: int) -> None:
        """Do it."""

    def untyped(a) -> None:
        """Do it.

        Args:
            a: A.
        """

    for function in (silent, unexplained, untyped):
        with pytest.raises(TypeError, match=function.__name__):
            tool_spec(function)
    with pytest.raises(TypeError):
        json_type(dict)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON"),
        ('{"bbox_2d": [1, 2, 3', "JSON"),
        ("[1, 2, 3, 4]", "object"),
        ("{}", "bbox_2d: Field required"),
        ('{"bbox_2d": ' + "[" * 3000 + "]" * 3000 + "}", "bbox_2d|JSON"),
        ('{"bbox_2d": [' + "1," * 20_000 + "1]}", "longer than"),
        ('{"bbox_2d": "[1, 2, 3, 4]"}', "bbox_2d"),
        ('{"bbox_2d": ["1", 2, 3, 4]}', "bbox_2d.0"),
        ('{"bbox_2d": [NaN, 2, 3, 4]}', "finite"),
        ('{"bbox_2d": [1, 2, 3, 4], "extra": true}', "extra"),
    ],
)
def test_wrong_arguments_are_explained_to_the_model(text, words):
    with pytest.raises(BadArguments, match=words):
        TOOLS["image_zoom_in_tool"].arguments(text)


def test_right_arguments_pass():
    assert TOOLS["image_zoom_in_tool"].arguments('{"bbox_2d": [1, 2.5, 3, 4]}') == {"bbox_2d": [1, 2.5, 3, 4]}
    assert TOOLS["search_web"].arguments('{"query": "東京"}') == {"query": "東京"}


@given(st.text(max_size=60))
def test_any_text_is_arguments_or_a_complaint(text):
    try:
        assert set(TOOLS["search_web"].arguments(text)) == {"query"}
    except BadArguments as error:
        assert str(error)
