"""All four rewards through the trainer's own call, GeoAgent's against real services over sockets."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infra.offline.faults import Faults
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.settings.services import ServicesSettings
from tasks.services import Connections, connect
from tasks.train.rollouts.source import Episode, Judged, recipe_scorer
from tasks.train.token_samples import Completion

BARCELONA = {"lat": 41.3888, "lon": 2.159, "country": "Spain", "region": "Catalonia", "city": "Barcelona"}
CLOSED = "http://127.0.0.1:9"  # the port of a service that no machine offers


@pytest.fixture(scope="module")
def world_url() -> Iterator[str]:
    with serving(create_app(World(seed=7, size=200, pano_width=512), Faults(), warm=False)) as url:
        yield url


def services(url: str, chat: str | None = None) -> Connections:
    once = {"max_attempts": 1, "timeout_s": 120, "total_timeout_s": 120}
    return connect(
        ServicesSettings.model_validate(
            {
                "answer_geocoder": {"base_url": f"{url}/nominatim", "protocol": "nominatim", **once},
                "chat": {"base_url": f"{chat or url}/openai/v1", **once},
            }
        ),
        {},
    )


def completion(country: str, region: str, place: str) -> str:
    """A reply in GeoAgent's form, whose reasoning bears its answer and is long enough for eq. 9."""
    words = (
        f"The shop signs, the road markings and the language on the posters all point to {country}, and nothing in the "
        f"picture speaks against {country}. The number plates and the kind of street lamps are those of {country} too.",
        f"Within {country} the style of the houses, the colour of the taxis and the shops' names are a hallmark of "
        f"{region}, so the picture was most likely taken in {region}, {country}, and not elsewhere in the country.",
        f"The tower in the background, the wide avenue and the pattern of the pavement are characteristic of {place}, "
        f"a city of {region}. I settle on {place}: no other city of {region} has this avenue beside this tower.",
    )
    names = ("CountryIdentification", "RegionalGuess", "PreciseLocalization")
    ends = (country, region, place)
    chain = {
        name: {"Clues": ["signs"], "Reasoning": text, "Conclusion": end, "Uncertainty": "low"}
        for name, text, end in zip(names, words, ends, strict=True)
    }
    return json.dumps({"ChainOfThought": chain, "FinalAnswer": f"{country}; {region}; {place}"})


def episode(text: str, outage: str | None = None) -> Episode:
    return Episode(Completion([], []), True, text, outage=outage)


def rewards(recipe: str, texts: list[str], connections: Connections | None = None) -> list[Any]:
    return [one.reward for one in recipe_scorer(recipe, None, connections)([(episode(t), BARCELONA) for t in texts])]


def tagged(lat: float, lon: float, city: str = "", region: str = "", country: str = "") -> str:
    lines = [f"Country: {country}", f"Region: {region}", f"City: {city}", f"Latitude: {lat}", f"Longitude: {lon}"]
    return "<answer>" + "\n".join(lines) + "</answer>"


CITIES = (
    "Paris, Berlin, Madrid, Rome, Vienna, Lisbon, Warsaw, Athens, Oslo, Cairo, Lagos, Delhi, Tokyo, Lima, Barcelona"
)
CONTINENTS = "41.4, 2.2 or 40.7, -74.0 or -33.9, 18.4 or 35.7, 139.7 or -34.6, -58.4 or -33.9, 151.2"
PROMPT = "Where was this picture taken? Answer with Country, City, Latitude and Longitude inside <answer></answer>."
HACKS = [
    "",
    "   ",
    CITIES,
    f"<answer>{CITIES}</answer>",
    f"<answer>{CONTINENTS}</answer>",
    PROMPT,
    "Barcelona " * 10_000,
]


def test_geoagent_over_sockets(world_url: str) -> None:
    connections = services(world_url)
    ordered = [
        completion("Spain", "Catalonia", "Barcelona"),
        completion("Spain", "Catalonia", "Lleida"),
        completion("Spain", "Galicia", "Vigo"),
        completion("Japan", "Tokyo", "Shinjuku"),
    ]
    scorer = recipe_scorer("geoagent", None, connections)
    judged = scorer([(episode(text), BARCELONA) for text in ordered])
    found = [one.reward for one in judged]
    assert None not in found and found == sorted(found, key=lambda value: -(value or 0.0)), found
    assert judged[0].parts is not None
    assert judged[0].parts["spatial"] > 0.9 and judged[0].parts["semantic"] == pytest.approx(1.0)
    assert judged[0].parts["consistency"] > 0.5 and (found[0] or 0) > 2.5
    assert (found[3] or 0) < 0.5, "another continent earns next to nothing"
    assert rewards("geoagent", HACKS, connections) == [0.0] * len(HACKS)


def test_an_outage_of_any_service_excludes_the_rollout(world_url: str) -> None:
    gold = completion("Spain", "Catalonia", "Barcelona")
    for broken in (services(CLOSED, chat=world_url), services(world_url, chat=CLOSED)):
        [found] = recipe_scorer("geoagent", None, broken)([(episode(gold), BARCELONA)])
        assert found.reward is None and str(found.reason).endswith("_outage")
    for recipe in ("spotagent", "geovista", "thinking-with-map"):
        scored = recipe_scorer(recipe)([(episode(tagged(41.3888, 2.159), "search_outage"), BARCELONA)])
        assert scored == [Judged(None, "search_outage")]


@pytest.mark.parametrize(("recipe", "most"), [("spotagent", 1.0), ("thinking-with-map", 1.0), ("geovista", 4.0)])
def test_gold_is_the_maximum_and_hacking_earns_nothing(recipe: str, most: float) -> None:
    ordered = [
        tagged(41.3888, 2.159, "Barcelona", "Catalonia", "Spain"),
        tagged(41.6, 1.5, "Igualada", "Catalonia", "Spain"),
        tagged(42.2, -8.7, "Vigo", "Galicia", "Spain"),
        tagged(35.7, 139.7, "Tokyo", "Tokyo", "Japan"),
    ]
    found = rewards(recipe, ordered)
    assert found[0] == most and found[-1] == 0
    assert found == sorted(found, reverse=True)
    assert rewards(recipe, HACKS) == [0.0] * len(HACKS)
