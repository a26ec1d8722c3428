"""The list of settings is complete, and true to what the models accept."""

from typing import Literal

from pydantic import Field

from schemas.config import Config
from schemas.describe import Setting, sections_of, settings_of
from schemas.settings.base import Settings


class Inner(Settings):
    """What is inside."""

    share: float = Field(0.5, ge=0, lt=1, description="a share")
    codes: tuple[str, ...] | None = Field(None, min_length=1)


class Heir(Inner):
    share: float = 0.7


class Outer(Settings):
    """All of it. More of it."""

    kind: Literal["a", "b"] = Field("a", description="which")
    pair: tuple[int, float] = (1, 2.0)
    inner: Inner = Inner(share=0.25)
    maybe: Heir | None = None


def found(value: Outer | None = None) -> dict[str, Setting]:
    return {one.name: one for one in settings_of(Outer(), value or Outer())}


def test_fields_of_all_depths_come_with_default_value_meaning_and_bounds() -> None:
    every = found(Outer(inner=Inner(share=0.1, codes=("FR",))))
    assert list(every) == ["kind", "pair", "inner.share", "inner.codes", "maybe.share", "maybe.codes"]
    assert every["inner.share"] == Setting(
        "inner.share", "inner", 0.25, 0.1, "number, at least 0, less than 1", "a share"
    )
    assert (every["inner.codes"].value, every["inner.codes"].allowed) == (["FR"], "list of text or null, not empty")
    assert (every["kind"].allowed, every["pair"].allowed) == ("a or b", "[whole number, number]")


def test_an_heir_keeps_the_meaning_and_a_section_that_is_not_there_its_defaults() -> None:
    assert (found()["maybe.share"].meaning, found()["maybe.share"].default) == ("a share", 0.7)
    assert dict(sections_of(Outer))["inner"] == "What is inside."


def test_every_setting_of_geofix_has_a_meaning_and_a_unique_name() -> None:
    every = list(settings_of(Config(), Config()))
    assert len({one.name for one in every}) == len(every) > 300
    assert [one.name for one in every if not one.meaning] == []
    assert all(one.value == one.default and one.allowed for one in every)
