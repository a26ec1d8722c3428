"""The text of the web's pages: towns, streets and shops, as a directory or an encyclopedia has them."""

from __future__ import annotations

from infra.offline.facts import countries
from infra.offline.gazetteer import City
from infra.offline.place import Sign
from infra.offline.sign_index import Street

KINDS = {"bakery": "a bakery", "pharmacy": "a pharmacy", "market": "a food market", "restaurant": "a restaurant"}
_OFFERS = {
    "bakery": "Bread and rolls are baked on the premises every morning; cakes are made to order.",
    "pharmacy": "Prescriptions are filled on the same day; the night service rotates with the others in town.",
    "market": "Fruit, vegetables and groceries of the region; deliveries within the town on two days of the week.",
    "restaurant": "Lunch is served on weekdays, dinner from Thursday to Sunday; tables for groups should be booked.",
}
_HOURS = ("Open Monday to Saturday.", "Open every day but Monday.", "Open on weekdays, closed for lunch.")
_NOTES = (
    "Readers rate it well for its staff; some complain about parking.",
    "The entry was last checked by a volunteer two years ago and may be out of date.",
    "It moved to this address from another part of the town some years ago.",
    "Visitors mention the friendly service and the old shop front.",
)


def shop_page(street: Street, sign: Sign, key: int) -> str:
    """A directory's entry on a shop; the first sentence says what and where."""
    phone = sign.lines[1] if len(sign.lines) > 1 else ""
    others = [other.lines[0] for other in street.shops if other is not sign]
    beside = f" In the same street: {'; '.join(others)}." if others else ""
    return (
        f"{sign.lines[0]} is {KINDS[sign.kind]} in {street.street}, {_where(street.city)}. Phone: {phone}. "
        f"{_HOURS[key % 3]} {_OFFERS[sign.kind]}{beside} {_NOTES[key // 7 % 4]} {_local(street.city)}"
    )


def street_page(street: Street, key: int) -> str:
    """An entry on a street with what is on it."""
    shops = "; ".join(sign.lines[0] for sign in street.shops)
    listed = f" On it: {shops}." if shops else " No shops are listed on it."
    built = 1850 + key % 150
    return (
        f"{street.street} is a street in {_where(street.city)}.{listed} Most of its houses date from after {built}. "
        f"The street is served by the town's buses on weekdays. {_local(street.city)}"
    )


def city_page(city: City) -> str:
    """An encyclopedia's entry on a town."""
    facts = countries()[city.country]
    aliases = [name for name in city.alternate_names if name != city.name][:6]
    known = f" It is also known as {', '.join(aliases)}." if aliases else ""
    size = "large city" if city.population >= 300_000 else "city" if city.population >= 50_000 else "town"
    return (
        f"{city.name} is a city in {_division(city)}, with about {city.population:,} people, at {city.lat:.3f}, "
        f"{city.lon:.3f}.{known} Traffic drives on the {facts.drives_on}. Telephone numbers begin with "
        f"{facts.phone_prefix or 'no common prefix'}. The {size} has bakeries, pharmacies, markets and restaurants in "
        f"its centre and along the streets that lead out of it; schools and the town hall bear its name. Its directory "
        f"lists some forty streets and shops."
    )


def _where(city: City) -> str:
    return ", ".join(part for part in (city.name, city.admin1, countries()[city.country].name) if part)


def _division(city: City) -> str:
    name = countries()[city.country].name
    return f"{city.admin1}, {name}" if city.admin1 else name


def _local(city: City) -> str:
    """A closing sentence with the town's name in its own script, where one is listed."""
    local = next((name for name in city.alternate_names if not name.isascii() and name != city.name), "")
    return f"Town: {city.name} ({local})." if local else f"Town: {city.name}."
