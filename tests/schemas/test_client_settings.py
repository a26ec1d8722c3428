"""`services.client` holds for every service, and each may override single fields."""

import pytest
from pydantic import ValidationError

from schemas.settings.services import ServicesSettings


def test_services_take_the_clients_fields_unless_they_set_them() -> None:
    found = ServicesSettings.model_validate(
        {
            "client": {"max_attempts": 2, "timeout_s": 30},
            "mapillary": {"max_attempts": 7},
            "stac": {"base_url": "https://stac.example/v1"},
            "trained": {"base_url": "http://127.0.0.1:8000/v1"},
        }
    )
    assert (found.mapillary.max_attempts, found.mapillary.timeout_s) == (7, 30)
    assert (found.stac.max_attempts, found.stac.base_url) == (2, "https://stac.example/v1")
    assert found.geocoder.max_attempts == found.search.max_attempts == 2
    # A model takes longer than other services: its default is its own.
    assert (found.chat.max_attempts, found.chat.timeout_s) == (2, 180)
    assert found.trained is not None and found.trained.max_attempts == 2
    assert ServicesSettings().trained is None


def test_a_resolved_section_gives_the_same_again() -> None:
    found = ServicesSettings.model_validate({"client": {"max_attempts": 2}, "search": {"max_attempts": 3}})
    assert ServicesSettings.model_validate(found.model_dump()) == found


@pytest.mark.parametrize("wrong", [{"timeout_s": -1}, {"max_attempt": 3}])
def test_what_is_wrong_is_said_once(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError) as caught:
        ServicesSettings.model_validate({"client": wrong})
    (error,) = caught.value.errors()
    assert error["loc"] == ("client", *wrong)
