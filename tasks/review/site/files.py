"""Files of the site: whole or absent, written only when their content changes."""

import os
from pathlib import Path
from typing import Any

import orjson


class Folder:
    """A folder on this machine. Its files can be made again, so they are renamed into place but not synced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """The file's bytes; empty while there is none."""
        path = self.path / name
        return path.read_bytes() if path.is_file() else b""

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}-{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(path)


def script(name: str, value: Any) -> bytes:
    """A script that hands a value to the page. What is not a number becomes null; times become text."""
    text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME)
    # Line separators end a line in older JavaScript; people do not write them.
    for separator in ("\u2028", "\u2029"):
        text = text.replace(separator.encode(), b" ")
    return b"geofix.push(" + orjson.dumps(name) + b"," + text + b");\n"
