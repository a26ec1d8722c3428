"""Whatever a client sends, it gets a reading or a refusal, never a crash."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.offline.chat.answer_form import fill_schema
from infra.offline.chat.protocol import ChatError, ChatRequest, read_request

WORDS = [
    "model", "messages", "role", "content", "tool_calls", "function", "name", "arguments", "id", "type", "text",
    "tools", "image_url", "url", "tool_choice", "response_format", "json_schema", "schema", "stop", "n", "seed",
    "temperature", "stream", "stream_options", "max_tokens", "planner", "user", "assistant", "tool", "tool_call_id",
]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(WORDS)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)
SCHEMA_WORDS = [
    "type", "properties", "items", "enum", "anyOf", "$ref", "#/$defs/a", "$defs", "a", "const", "object", "array",
    "string", "number", "integer", "null", "minimum", "maximum", "maxItems", "score",
]  # fmt: skip
schema_scalars = st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(SCHEMA_WORDS)
schemas = st.recursive(
    schema_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SCHEMA_WORDS), inner, max_size=4),
    max_leaves=14,
)
HELLO = [{"role": "user", "content": "hello"}]


@settings(max_examples=200, deadline=None)
@given(field=st.sampled_from(WORDS), value=anything, message=anything)
def test_any_body_is_read_or_refused(field: str, value: Any, message: Any) -> None:
    bodies = (
        {"model": "planner", "messages": HELLO, field: value},
        {"model": "planner", "messages": [message]},
        {"model": "planner", "messages": [{"role": "assistant", "content": "x", field: value}]},
        {"model": "planner", "messages": HELLO, "tools": [value], "tool_choice": message, "response_format": value},
        value,
    )
    for body in bodies:
        try:
            assert isinstance(read_request(body, {"planner": False}), ChatRequest)
        except ChatError as error:
            assert 400 <= error.status < 500


@settings(max_examples=200, deadline=None)
@given(schema=st.dictionaries(st.sampled_from(SCHEMA_WORDS), schemas, max_size=5))
def test_any_schema_gives_json(schema: dict[str, Any]) -> None:
    json.loads(fill_schema(schema, {"score": 7.5, "reason": "x", "a": {"score": 1}, "tags": ["b"]}))
