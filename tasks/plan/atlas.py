"""The atlas of the ground floor, under the name the plan knows it by."""

from tasks.atlas import DATA, PER_DEGREE, Outlines, countries, gazetteer, outlines

__all__ = ["DATA", "PER_DEGREE", "Outlines", "countries", "gazetteer", "outlines"]
