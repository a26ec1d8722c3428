"""Wrong plan settings are refused with words a person can act on."""

import pytest
from pydantic import ValidationError

from schemas.settings.plan import PlanSettings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"places": 0}, "greater than or equal to 1"),
        ({"places": -3}, "greater than or equal to 1"),
        ({"weights": {"roads": 0.5, "people": 0.2, "land": 0.2}}, "must sum to 1.*0.9"),
        ({"split": {"train": 1, "validation": 0.5, "benchmark": 0}}, "must sum to 1"),
        ({"countries": ["fr"]}, "'fr' is not an ISO 3166"),
        ({"countries": []}, "at least 1"),
        ({"countries": ["AQ"]}, "nothing is left to plan"),
        ({"spacing_km": -1}, "greater than or equal to 0"),
        ({"spacing_km": float("nan")}, "spacing_km"),
        ({"within_cell": "roads"}, "gazetteer"),
        ({"preset": "geoseek"}, "geoseek-loc"),
        ({"plaecs": 3}, "plaecs"),
    ],
)
def test_wrong_values_are_explained(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){words}"):
        PlanSettings(**given)


def test_presets_name_the_published_sizes() -> None:
    assert PlanSettings(preset="geoseek-loc").total == 20_000
    assert PlanSettings(preset="geoseek-val", places=9).total == 3_000
    assert PlanSettings(places=9).total == 9
