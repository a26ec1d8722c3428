"""What the houses of a region look like."""

from __future__ import annotations

from dataclasses import dataclass

from infra.offline.render.canvas import Colour


@dataclass(frozen=True)
class Style:
    """Colours and shapes of a region's houses."""

    walls: tuple[Colour, ...]
    roofs: tuple[Colour, ...]
    pitched: float  # share of pitched roofs
    floors: tuple[int, int]  # fewest and most
    window: Colour
    frame: Colour


# style | walls | roofs | share of pitched roofs | floors | window glass | window frame
_ROWS = """
nordic|962822 e2ce96 eceae2 5c7078|403e40 5c3228|0.9|1-3|3a4858|fafaf8
brick|8e4a38 a05c44 784234 beaa92|4a4446 6e3e30|0.85|2-3|3a4858|f6f6f2
plaster|ecdeba e2c496 d6d0c4 c8d6be f0ece2|a84e32 8c422e 605450|0.85|2-4|3a4858|eeece6
mediterranean|f6f0e2 e8c084 dea070 f0d8aa|be6842 b05c3a|0.6|2-4|40544a|4a6e54
block|bcb8b0 cec4ac acb2ba d6cec4|6e6e70|0.15|4-8|3a4858|e2e2e0
wood|e2e4e0 aabac4 cebea0 96a08c ece6d2|565252 706054|0.75|1-2|3a4858|fcfcfa
asian|cec8be e4e0d6 b0aca8 beb09e|464e5c 56565a|0.45|2-4|4a5660|c4c6c8
chinese|d6cec2 c4beb8 e2d8c8 b6a092|787474|0.1|4-9|485c6a|d2d4d6
tropical|ecdebe bed6ce f4e8d6 d6b296|b06040 78828c|0.55|1-3|3c464a|d6be96
indian|ecc496 aac8d6 eee0b4 d6a0a0 c4cea0|b0aaa0|0.08|1-4|424246|785a3c
desert|dec8a0 e8d6b4 d0b892 f0e4cc|ceba96|0.02|1-4|46423e|a08260
african|cea074 e4ceaa b4805c d6be96|967868 848a92|0.5|1-2|3a3836|6e5642
latin|f0ba5a 60a8b4 dc6e60 f6e2aa 8cb878|b0603e 969492|0.35|1-3|3e4248|f0eadc
"""


def _colour(text: str) -> Colour:
    return int(text[0:2], 16), int(text[2:4], 16), int(text[4:6], 16)


def _parse(row: str) -> tuple[str, Style]:
    name, walls, roofs, pitched, floors, window, frame = row.split("|")
    low, high = floors.split("-")
    return name, Style(
        walls=tuple(_colour(text) for text in walls.split()),
        roofs=tuple(_colour(text) for text in roofs.split()),
        pitched=float(pitched),
        floors=(int(low), int(high)),
        window=_colour(window),
        frame=_colour(frame),
    )


STYLES: dict[str, Style] = dict(_parse(row) for row in _ROWS.strip().splitlines())
