"""How a recipe's answer becomes a point: the one it names, or that of its address, which a geocoder gives."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from tasks.geo.distance import distance_km
from tasks.recipes.recipe import RECIPES
from tasks.reward.answer import ParseFailure, parse_answer, parse_point
from tasks.reward.outcome import PointError, point_error
from tasks.services.geocoder import GeocodeCandidate

NOT_FOUND = "address_not_found"  # why an address has no point


class AddressSearch(Protocol):
    """A geocoder."""

    def search(self, query: str, limit: int = 5) -> Awaitable[Sequence[GeocodeCandidate]]: ...


def reads_addresses(recipe: str) -> bool:
    """Whether the recipe's answers are located by a geocoder."""
    return RECIPES[recipe].addresses_of is not None


async def named_point(recipe: str, text: str, geocoder: AddressSearch) -> tuple[float, float] | None:
    """The point that an answer names; None: none. A geocoder that fails raises."""
    addresses_of = RECIPES[recipe].addresses_of
    if addresses_of is None:
        answer = parse_point(text)
        if isinstance(answer, ParseFailure) or answer.lat is None or answer.lon is None:
            return None
        return answer.lat, answer.lon
    for address in addresses_of(text):
        for place in await geocoder.search(address, limit=1):
            return place.lat, place.lon
    return None


async def located(recipe: str, text: str, lat: float, lon: float, geocoder: AddressSearch) -> PointError:
    """The point of an answer and its distance from the truth, or why it has none. A geocoder that fails raises."""
    addresses_of = RECIPES[recipe].addresses_of
    if addresses_of is None:
        return point_error(text, lat, lon)
    point = await named_point(recipe, text, geocoder)
    if point is not None:
        return PointError(*point, distance_km(*point, lat, lon))
    answer = parse_answer(text)
    unread = answer.reason if isinstance(answer, ParseFailure) else "no_address"
    return PointError(parse_error=NOT_FOUND if addresses_of(text) else unread)
