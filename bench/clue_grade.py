"""How much a picture gives away: its clues graded from none to rich, by what its legible lines say.

The grade is of what is painted. Blur and darkness, which may hide all of it, are graded apart (`ImageRecord`).
"""

from collections.abc import Iterable

from infra.offline.place import Place, shop_text
from infra.offline.render.signs import SeenSign
from infra.offline.words import WORDS

GRADES = ("none", "weak", "some", "rich")
LEGIBLE_PX = 5.0  # height of letters in a picture 1,024 px wide; the keenest answerer reads from there on
LEAST_FREE = 0.5  # of a board


def clue_grade(place: Place, signs: Iterable[SeenSign], width: int) -> str:
    """One of GRADES, of a picture that is `width` px wide and shows these boards of a place.

    Nothing legible; words and names that tell a language; a line that tells the country, or the town; lines for both.
    A town's name alone may be that of a namesake.
    """
    told = {
        tells(place, line)
        for sign in signs
        if sign.free >= LEAST_FREE
        for line, letters_px in zip(sign.lines, sign.letters_px, strict=True)
        if letters_px * 1024 >= LEGIBLE_PX * width
    }
    return GRADES[len(told & {"town", "country"}) + 1] if told else GRADES[0]


def tells(place: Place, line: str) -> str:
    """What a painted line of a place tells: its "town", its "country" (a phone's prefix, a town near by), "words"."""
    words = WORDS[place.language]
    if line == place.local_name or any(line == shop_text(words, shop.kind, place.local_name) for shop in place.shops):
        return "town"
    for name, km in place.towns_ahead:
        if line == f"{name}  {km}":
            return "town" if name == place.local_name else "country"
    prefix = place.facts.phone_prefix
    is_phone = any(line in shop.lines[1:] for shop in place.shops)
    return "country" if is_phone and prefix and line.startswith(prefix) else "words"
