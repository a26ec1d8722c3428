"""The values of a table's cells: text as it stands in the file, or None where there is nothing."""

from urllib.parse import unquote_plus

Values = tuple[str | None, ...]


# What pandas, spreadsheets and databases write where there is nothing. NA is missing here: it is Namibia.
_NOTHING = frozenset({"", "nan", "null", "none", "n/a", "#n/a", "<na>", "nat", "\\n"})


def text_or_none(value: str) -> str | None:
    """The text without the space around it; None for an empty one, or for a word that stands for nothing."""
    text = value.strip()
    return None if len(text) <= 4 and text.casefold() in _NOTHING else text


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
