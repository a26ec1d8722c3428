"""What `geofix locate` shows of a tool's answer."""

from flows.cli.locating import result_lines


def test_a_line_for_each_result_and_a_word_for_a_picture() -> None:
    found = '{"results": [{"title": "A", "url": "http://a", "content": ""}, {"title": "B"}]}'
    assert result_lines(found) == ["A · http://a", "B"]
    crop = [{"type": "text", "text": '{"bbox_2d": [1, 2, 3, 4]}'}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert result_lines(crop) == ["a picture of [1, 2, 3, 4]"]
    assert result_lines('{"results": []}') == ["nothing"] and result_lines("no JSON") == ["no JSON"]
    assert result_lines('{"error": "query: Field required"}') == ["query: Field required"]
