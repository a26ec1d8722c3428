"""Text from outside is shown without its secrets, whatever kind of address they stand in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.services.errors import safe_text

WORD = st.text("abcdefghijkXYZ0123456789", min_size=6, max_size=12)


@pytest.mark.parametrize("scheme", ["http", "https", "ftp", "sftp", "s3", "HTTPS", "git+ssh"])
@given(user=WORD, password=WORD)
def test_no_password_of_any_address_is_shown(scheme: str, user: str, password: str) -> None:
    said = safe_text(f"given {scheme}://{user}:S{password}@host/x.jpg?token=S{password}, and so on")
    assert f"S{password}" not in said and "host/x.jpg" in said and "and so on" in said


@pytest.mark.parametrize("text", ["user:SECRET@host/x.jpg", "see user:SECRET@host", "//user:SECRET@[::1]/x"])
def test_nor_of_an_address_without_scheme(text: str) -> None:
    assert "SECRET" not in safe_text(text) and "***@" in safe_text(text)


@pytest.mark.parametrize("text", ["a" * 3_000_000, "a:" * 1_000_000, "a@" * 1_000_000, "a" * 1000 + ":b@c"])
def test_long_texts_take_no_time(text: str) -> None:
    assert len(safe_text(text, limit=100)) == 100


@pytest.mark.parametrize("text", ["12@N00.jpg", "at 12:30 by a@b", "path 'a/b:c.jpg' is missing"])
def test_other_text_stays(text: str) -> None:
    assert safe_text(text) == text
