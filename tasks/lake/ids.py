"""Ids that went through a floating-point number on their way into the table.

A 64-bit float has 53 binary digits, so an id of 17 or more decimal digits comes back as a neighbour of itself: the
row then names another picture, or none. Written out, such an id shows as 1.23e+17, or with a trailing .0, or only by
being one of the few numbers a float can hold.
"""

import math

import polars as pl

# 1234e567 is a float's notation too, but also a hexadecimal number: programs write a point or a sign with it.
_AS_FLOAT = r"(?i)^(?:[-+]?\d+(?:\.\d*)?e[-+]\d+|[-+]?\d+\.\d*e\d+|[-+]?\d+\.0*|[-+]?(?:nan|inf|infinity))$"


def written_as_float(ids: pl.Expr) -> pl.Expr:
    """Whether an id is a float's notation: 1.23e+17, 12345.0, nan."""
    return ids.str.contains(_AS_FLOAT)


def long_ids(ids: pl.Series) -> pl.Series:
    """The ids so long that at most every second number of their size survives a float."""
    long = ids.filter(ids.str.contains(r"^\d{17,25}$"))
    return long.filter(pl.Series([math.ulp(float(text)) >= 4 for text in long], dtype=pl.Boolean))


def float_can_hold(number: int) -> bool:
    """Whether a float has this value, or is printed with these digits and zeros behind them."""
    value = float(number)
    if int(value) == number:
        return True
    digits, _, exponent = repr(value).partition("e+")
    if not exponent:
        return False
    return number == int(digits.replace(".", "").ljust(int(exponent) + 1, "0"))
