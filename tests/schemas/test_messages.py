"""Usage adds up; pictures are named by digest and found again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.messages import ToolCall, Usage, image_part, image_reference, image_references, text_part

usages = st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 100), st.integers(0, 99))


@given(st.lists(usages))
def test_usage_sums(parts):
    total = sum(parts, Usage())
    assert total.prompt_tokens == sum(p.prompt_tokens for p in parts)
    assert total.requests == sum(p.requests for p in parts)
    assert sum(parts[:1]) in (0, *parts[:1])
    with pytest.raises(TypeError):
        Usage() + 1


def test_pictures_are_named_by_digest():
    part = image_part("ab" * 32, "png")
    assert image_reference(part) == ("ab" * 32, "png")
    assert image_references([{"role": "user", "content": [part, text_part("x")]}, {"content": "y"}, {}]) == [
        ("ab" * 32, "png")
    ]
    for wrong in ("../etc", "AB" * 32, "ab" * 31):
        with pytest.raises(ValueError):
            image_part(wrong)
    for other in (text_part("x"), {"type": "image_url", "image_url": {"url": "https://x"}}, None, 3):
        assert image_reference(other) is None


def test_a_tool_call_as_a_message_part():
    assert ToolCall("c1", "f", "{}").message_part() == {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
