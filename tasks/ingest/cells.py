"""The values of a table's cells: text as it stands in the file, or None where there is nothing."""

from urllib.parse import unquote_plus

Values = tuple[str | None, ...]


def text_or_none(value: str) -> str | None:
    """The text without the space around it; None for an empty one."""
    return value.strip() or None


def is_text(value: str) -> bool:
    """Whether it can be stored: JSON may hold one half of a character that needs two."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def decoded(value: str | None) -> str | None:
    """Text that was written as in an address, with + for a space."""
    return unquote_plus(value) if value else value
