"""Ids that went through a floating-point number on their way into the table.

A 64-bit float has 53 binary digits, so an id of 17 or more decimal digits comes back as a neighbour of itself: the
row then names another picture, or none. Written out, such an id shows as 1.23e+17, or with a trailing .0, or only by
being one of the few numbers a float can hold.
"""

import math
import re

_WRITTEN_AS_FLOAT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+|[-+]?\d+\.0*|[-+]?(?:nan|inf|infinity)", re.IGNORECASE)
# 1234e567 is a float's notation too, but also a hexadecimal number; only the column tells.
_OR_HEXADECIMAL = re.compile(r"\d+[eE]\d+")
_OTHER_LETTERS = re.compile(r"[^\W\d_eE]")
_NUMBER = re.compile(r"\d{10,25}")
ENOUGH_ZEROS = 3  # by chance three of ten ids end in four zeros once in ten thousand million tables
_LONG = re.compile(r"\d{17,25}")
UNLIKELY = math.log(1e-6)  # of an undamaged table looking like this
WORTH_A_NOTE = math.log(0.01)
MOST = 0.95  # of the long ids being round: the whole column went through a float


def written_as_float(text: str) -> bool:
    """Whether an id is a float's notation: 1.23e+17, 12345.0, nan."""
    return _WRITTEN_AS_FLOAT.fullmatch(text) is not None


def may_be_hexadecimal(text: str) -> bool:
    """Whether an id that is `written_as_float` has only hexadecimal digits."""
    return _OR_HEXADECIMAL.fullmatch(text) is not None


def has_letters(text: str) -> bool:
    """Whether an id has letters that no number has: a column of such ids never went through a float as a whole."""
    return _OTHER_LETTERS.search(text) is not None


def float_can_hold(number: int) -> bool:
    """Whether a float has this value, or is printed with these digits and zeros behind them."""
    value = float(number)
    if int(value) == number:
        return True
    digits, _, exponent = repr(value).partition("e+")
    if not exponent:
        return False
    return number == int(digits.replace(".", "").ljust(int(exponent) + 1, "0"))


def chance_to_be_round(number: int) -> float:
    """How likely a number of this size is one that `float_can_hold`: two of them lie between neighbouring floats."""
    return min(1.0, 2.0 / math.ulp(float(number)))


class LongIds:
    """Counts over all long ids of a table, and what they amount to."""

    def __init__(self) -> None:
        self.count = 0
        self.round = 0
        self.expected = 0.0
        self.first: tuple[int, str] | None = None  # row and id of the first round one
        self.numbers = 0  # ids of ten digits and more
        self.zeros = 0  # of them, those that end in four zeros
        self.first_zeros: tuple[int, str] | None = None

    def add(self, row: int, text: str) -> None:
        """Take an id into account, if it is a long number."""
        if _NUMBER.fullmatch(text):
            self.numbers += 1
            if text.endswith("0000"):
                self.zeros += 1
                self.first_zeros = self.first_zeros or (row, text)
        if not _LONG.fullmatch(text):
            return
        number = int(text)
        chance = chance_to_be_round(number)
        if chance > 0.5:
            return  # of 17 digits: nearly every one can be held, which tells nothing
        self.count += 1
        self.expected += chance
        if float_can_hold(number):
            self.round += 1
            self.first = self.first or (row, text)

    @property
    def damaged(self) -> bool:
        """Whether far more ids are round than chance allows."""
        return _log_chance(self.round, self.expected) < UNLIKELY

    @property
    def rounded_off(self) -> bool:
        """Whether most ids end in zeros: a float was printed with its first digits and filled up (818314000000000)."""
        return self.zeros >= ENOUGH_ZEROS and self.zeros * 2 > self.numbers

    @property
    def some_rounded_off(self) -> bool:
        """Whether more ids end in four zeros than chance, one in ten thousand, explains."""
        return _log_chance(self.zeros, self.numbers / 10_000) < WORTH_A_NOTE

    @property
    def whole_column(self) -> bool:
        """Whether practically every long id is damaged."""
        return self.damaged and self.round >= MOST * self.count

    @staticmethod
    def suspect(text: str) -> bool:
        """Whether a single id may be one of the damaged ones."""
        return _LONG.fullmatch(text) is not None and chance_to_be_round(int(text)) <= 0.5 and float_can_hold(int(text))


def _log_chance(found: int, expected: float) -> float:
    """At most the logarithm of the chance to find so many or more: a Poisson variable's upper tail, by Chernoff."""
    return 0.0 if found <= expected else found - expected - found * math.log(found / expected)
