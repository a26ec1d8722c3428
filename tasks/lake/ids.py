"""Ids that went through a floating-point number on their way into the table.

A 64-bit float has 53 binary digits, so an id of 17 or more decimal digits comes back as a neighbour of itself: the
row then names another picture, or none. Written out, such an id shows as 1.23e+17, or with a trailing .0, or only by
being one of the few numbers a float can hold.
"""

import math
from dataclasses import dataclass

import polars as pl

# 1234e567 is a float's notation too, but also a hexadecimal number; only the column tells.
_AS_FLOAT = r"(?i)^(?:[-+]?\d+(?:\.\d*)?e[-+]?\d+|[-+]?\d+\.0*|[-+]?(?:nan|inf|infinity))$"
_OR_HEXADECIMAL = r"(?i)^\d+e\d+$"
ENOUGH_ZEROS = 3  # by chance three of ten ids end in four zeros once in ten thousand million tables
UNLIKELY = math.log(1e-6)  # of an undamaged table looking like this
WORTH_A_NOTE = math.log(0.01)
MOST = 0.95  # of the long ids being round: the whole column went through a float


def written_as_float(ids: pl.Expr) -> pl.Expr:
    """Whether an id is a float's notation: 1.23e+17, 12345.0, nan."""
    return ids.str.contains(_AS_FLOAT)


def may_be_hexadecimal(ids: pl.Expr) -> pl.Expr:
    """Whether an id that is `written_as_float` has only hexadecimal digits."""
    return ids.str.contains(_OR_HEXADECIMAL)


def has_letters(ids: pl.Expr) -> pl.Expr:
    """Whether an id has letters that no number has: a column of such ids never went through a float as a whole."""
    return ids.str.contains(r"[^\W\d_eE]")


def may_be_rounded(ids: pl.Expr) -> pl.Expr:
    """Whether a single id may be one that a float has rounded."""
    long = pl.when(ids.str.contains(r"^\d{17,25}$")).then(ids)
    return long.map_elements(lambda text: _tells(int(text)) and float_can_hold(int(text)), pl.Boolean).fill_null(False)


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


def _tells(number: int) -> bool:
    """Nearly every number of 17 digits can be held, which tells nothing."""
    return chance_to_be_round(number) <= 0.5


Example = tuple[int, str] | None  # row and id


@dataclass
class LongIds:
    """Counts over all long ids of a table, and what they amount to."""

    count: int = 0
    round: int = 0
    expected: float = 0.0
    first: Example = None  # of the round ones
    numbers: int = 0  # ids of ten digits and more
    zeros: int = 0  # of them, those that end in four zeros
    first_zeros: Example = None

    def observe(self, rows: pl.DataFrame) -> None:
        """Count the long numbers among the ids of `rows` (row, source_id)."""
        numbers = rows.filter(pl.col("source_id").str.contains(r"^\d{10,25}$"))
        zeros = numbers.filter(pl.col("source_id").str.ends_with("0000"))
        long = numbers.filter(pl.col("source_id").str.len_bytes() >= 17)
        telling = [number for number in map(int, long["source_id"]) if _tells(number)]
        held = long.filter(may_be_rounded(pl.col("source_id")))
        self.numbers += numbers.height
        self.zeros += zeros.height
        self.count += len(telling)
        self.expected += sum(map(chance_to_be_round, telling))
        self.round += held.height
        self.first = self.first or _first(held)
        self.first_zeros = self.first_zeros or _first(zeros)

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


def _first(rows: pl.DataFrame) -> Example:
    return (rows["row"][0], rows["source_id"][0]) if rows.height else None


def _log_chance(count: int, expected: float) -> float:
    """At most the logarithm of the chance to find this many or more: a Poisson variable's upper tail, by Chernoff."""
    return 0.0 if count <= expected else count - expected - count * math.log(count / expected)
