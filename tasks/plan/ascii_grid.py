"""ASCII grids: what GDAL would read without a word although header and numbers say something else."""

import codecs
import re
from pathlib import Path
from typing import NoReturn

import numpy as np

from schemas.errors import InputError

KEYS = ("ncols", "nrows", "xllcorner", "xllcenter", "yllcorner", "yllcenter", "cellsize", "dx", "dy", "nodata_value")
PIECE = 1 << 24
LONGEST_LINE = 1 << 16  # of a header


def refuse(path: str, what: str) -> NoReturn:
    """Say what is wrong with the file, and how to mend it, under the name of its setting."""
    raise InputError(f"plan.population_raster: {path} {what}")


def read_header(path: str) -> dict[str, str] | None:
    """The words of the file's header by their names in lower case; none if it is no ASCII grid."""
    found = {}
    with Path(path).open("rb") as file:
        begin = file.read(4)
        if begin.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            refuse(
                path,
                "begins with a byte-order mark, as Excel and Notepad write it, which no reader of grids expects; "
                "save it as plain text (ANSI, or UTF-8 without BOM)",
            )
        file.seek(0)
        while words := file.readline(LONGEST_LINE).split():
            name = words[0].decode(errors="replace").lower()
            if name not in KEYS:
                break
            found[name] = b" ".join(words[1:]).decode(errors="replace")
    return found if "ncols" in found and "nrows" in found else None


def check_header(path: str, header: dict[str, str]) -> None:
    """Refuse a size or place that is no number, or is not there: GDAL takes it for 0."""
    for names in (("cellsize", "dx"), ("cellsize", "dy"), ("xllcorner", "xllcenter"), ("yllcorner", "yllcenter")):
        if not any(name in header for name in names):
            refuse(path, f"has no {names[0]} in its header")
    for name, value in header.items():
        try:
            number = float(value.replace(",", "."))
        except ValueError:
            refuse(path, f"has {name} {value[:20]!r} in its header, which is not a number")
        if name in ("ncols", "nrows") and not (number == int(number) and number > 0):
            refuse(path, f"has {name} {value[:20]} in its header; write how many there are")
        if name in ("cellsize", "dx", "dy") and not number > 0:
            refuse(path, f"has {name} {value[:20]} in its header; write the side of a pixel in degrees")


def check_numbers(path: str, header: dict[str, str]) -> None:
    """Refuse words among the numbers, more or fewer numbers than the header says, and rows of another length.

    GDAL reads `nan`, `1,5` and any other word as some number, goes on in the next line where one is too short, and
    leaves out what is over.
    """
    no_data_is_nan = header.get("nodata_value", "").lower() == "nan"
    wanted = b"0123456789+-.eE \t\r\n" + (b"nNaA" if no_data_is_nan else b"")
    columns, rows = (int(float(header[name])) for name in ("ncols", "nrows"))
    numbers, breaks, in_word = 0, 0, False
    with Path(path).open("rb") as file:
        for _ in header:
            file.readline(LONGEST_LINE)
        start = file.tell()
        in_first_line = len(file.readline(PIECE).split())
        file.seek(start)
        while piece := file.read(PIECE):
            # Deleting what is allowed is many times quicker than searching, and nearly always leaves nothing.
            if piece.translate(None, wanted):
                _refuse_word(path, piece, wanted, len(header) + 1 + breaks)
            breaks += piece.count(b"\n")
            word = np.frombuffer(piece, dtype=np.uint8) > ord(" ")
            numbers += int((word[1:] & ~word[:-1]).sum()) + int(word[0] and not in_word)
            in_word = bool(word[-1])
    if numbers != columns * rows:
        said = f"ncols {columns:,} x nrows {rows:,} = {columns * rows:,}"
        refuse(path, f"holds {numbers:,} numbers, but its header says {said}; correct it or get the file again")
    # A row may go on in further lines; a line of more than a row, or of as many as there are rows, is another grid's.
    if breaks > 1 and (in_first_line > columns or in_first_line == rows != columns):
        refuse(path, f"has {in_first_line:,} numbers in its first line, but ncols {columns:,}; correct the header")


def _refuse_word(path: str, piece: bytes, wanted: bytes, line: int) -> NoReturn:
    found = re.search(rb"[^" + re.escape(wanted) + rb"]", piece)
    assert found is not None
    begin = max(piece.rfind(b" ", 0, found.start()), piece.rfind(b"\n", 0, found.start())) + 1
    word = piece[begin:].split(None, 1)[0][:20].decode(errors="replace")
    line += piece.count(b"\n", 0, found.start())
    refuse(
        path,
        f"holds {word!r} in line {line}; people are numbers, and what is not a count is marked as no-data "
        "(NODATA_value)",
    )
