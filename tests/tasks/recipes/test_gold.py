"""Every recipe's reward, through the call that trainers make: gold earns the maximum, namesakes and wrong places never.

The labels are those of planned places all over the Earth, as curation writes them.
"""

import hashlib
import json
import random
import re
from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl
import pytest

from tasks.geo.atlas import gazetteer, place_names_table
from tasks.geo.geocode import find_places
from tasks.geo.labels import labels_of
from tasks.recipes.recipe import RECIPES
from tasks.recipes.rewards import Reward
from tasks.reward.answer import ParsedAnswer, ParseFailure, parse_answer
from tasks.reward.outcome import Scored, Truth, truth_of
from tasks.reward.services import RewardDeps

MAXIMUM = {"spotagent": 1.0, "thinking-with-map": 1.0, "geovista": 4.0, "geoagent": 3.0}


def geocode(address: str) -> tuple[float, float] | None:
    places = find_places(address, 1)
    return (places[0].lat, places[0].lon) if places else None


def embed(texts: Any) -> np.ndarray:
    """A direction of its own for every text."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=32) for seed in seeds])


def read_reasoning(role: str, system: str, question: str) -> dict[str, Any]:
    """A reader that repeats what the reasoning of each level says the signs name."""
    country, region, place = re.findall(r"The signs name (.+?)\. The road", question)
    region = region.removesuffix(f" in {country}")
    return {"country": country, "region": region, "place": place.removesuffix(f" in {region}, {country}")}


def reward_of(recipe: str) -> Reward:
    return Reward(recipe, RewardDeps(geocode=geocode, embed=embed, ask_json=read_reasoning))


def gold_reply(recipe: str, truth: Truth) -> str:
    make = RECIPES[recipe].reasoned_gold or RECIPES[recipe].gold
    return make(truth, 5)


def earned(recipe: str, text: str, row: dict[str, Any]) -> float:
    [found] = reward_of(recipe).many([text], [row])
    assert isinstance(found, Scored), found
    return found.reward


@pytest.fixture(scope="module")
def labels() -> list[dict[str, Any]]:
    """2,000 pictures, some kilometres beside towns drawn from the gazetteer."""
    chance = random.Random(5)
    towns = gazetteer().sample(2_000, seed=5)
    lat = [min(max(one + chance.gauss(0, 0.05), -89), 89) for one in towns["lat"]]
    lon = [one + chance.gauss(0, 0.05) for one in towns["lon"]]
    names = labels_of(lat, lon).select("country", "region", "city")
    rows = names.with_columns(lat=pl.Series(lat), lon=pl.Series(lon)).filter(pl.col("country").is_not_null())
    return rows.to_dicts()


@pytest.mark.parametrize("recipe", sorted(MAXIMUM))
def test_gold_earns_the_maximum_for_every_label(recipe: str, labels: list[dict[str, Any]]) -> None:
    replies = [gold_reply(recipe, truth_of(row)) for row in labels]
    found = reward_of(recipe).many(replies, labels)
    worth = [one.reward if isinstance(one, Scored) else -1.0 for one in found]
    below = [row for row, reward in zip(labels, worth, strict=True) if reward < MAXIMUM[recipe] - 1e-9]
    # GeoVista's label without a city has less to name.
    assert [row for row in below if recipe != "geovista" or row["city"]] == []
    assert len(labels) > 1_900


@pytest.mark.parametrize("recipe", sorted(MAXIMUM))
@pytest.mark.parametrize(
    "city, region, country, lat, lon",
    [
        ("Ressons-le-Long", "Hauts-de-France", "France", 49.39, 3.15),  # a line that ends as a label does
        ("Bueng Khong Long", "Bueng Kan", "Thailand", 18.0, 104.05),
        ("Kalibo (poblacion)", "Western Visayas", "Philippines", 11.71, 122.36),  # there is a Poblacion
        ("Slov`yanoserbsk", "Luhansk", "Ukraine", 48.7, 39.0),  # markdown to a reader of answers
    ],
)
def test_gold_of_a_name_that_reads_as_something_else(
    recipe: str, city: str, region: str, country: str, lat: float, lon: float
) -> None:
    row = {"city": city, "region": region, "country": country, "lat": lat, "lon": lon}
    assert earned(recipe, gold_reply(recipe, truth_of(row)), row) == pytest.approx(MAXIMUM[recipe])


def test_a_number_at_the_end_of_a_name_is_no_coordinate() -> None:
    truth = truth_of({"city": "Sección 23", "region": "Puebla", "country": "Mexico", "lat": 19.78778, "lon": -97.37917})
    answer = parse_answer(RECIPES["reverse"].gold(truth, 5))
    assert isinstance(answer, ParsedAnswer)
    assert (answer.lat, answer.lon) == (19.78778, -97.37917)
    for text in ("N 23, E 45, 19.7, -97.3", "lat 5, lon 6, 48.85, 2.35", "Nice 43.70, 7.26, 48.85, 2.35"):
        assert parse_answer(f"<answer>{text}</answer>") == ParseFailure("ambiguous", text=text), text


@pytest.mark.whole
@pytest.mark.parametrize("recipe", ["geovista", "spotagent", "thinking-with-map"])
def test_gold_earns_the_maximum_for_every_town_there_is(recipe: str) -> None:
    towns = gazetteer()
    names = labels_of(towns["lat"], towns["lon"]).select("country", "region", "city")
    rows = names.with_columns(towns["lat"], towns["lon"]).drop_nulls("country").to_dicts()
    found = reward_of(recipe).many([gold_reply(recipe, truth_of(row)) for row in rows], rows)
    worth = [one.reward if isinstance(one, Scored) else -1.0 for one in found]
    below = [row for row, reward in zip(rows, worth, strict=True) if reward < MAXIMUM[recipe] - 1e-9]
    assert [row for row in below if recipe != "geovista" or row["city"]] == []
    assert len(rows) > 230_000


@pytest.mark.parametrize("recipe", sorted(MAXIMUM))
def test_another_country_earns_less(recipe: str, labels: list[dict[str, Any]]) -> None:
    others = labels[1:] + labels[:1]
    for row, other in zip(labels[:300], others, strict=False):
        if row["country"] != other["country"]:
            assert earned(recipe, gold_reply(recipe, truth_of(other)), row) < MAXIMUM[recipe]


def namesakes(count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of towns of one country with one name, in different regions and far apart."""
    towns = pl.concat([gazetteer(), place_names_table()], how="horizontal")
    shared = towns.filter(pl.len().over("country", "name") > 1)
    labelled = pl.concat(
        [shared.select("country", "name", "lat", "lon").rename({"country": "code"}),
         labels_of(shared["lat"], shared["lon"]).select("country", "region", "division", "city")],
        how="horizontal",
    ).filter(pl.col("region").is_not_null(), pl.col("city") == pl.col("name"))  # fmt: skip
    by_name: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in labelled.to_dicts():
        by_name[row["code"], row["name"]].append(row)
    pairs = []
    for group in by_name.values():
        first = group[0]
        other = next((one for one in group[1:] if one["division"] != first["division"]), None)
        if other is not None and abs(first["lat"] - other["lat"]) + abs(first["lon"] - other["lon"]) > 2:
            pairs.append((first, other))
    return random.Random(3).sample(pairs, min(count, len(pairs)))


@pytest.mark.parametrize("recipe", sorted(MAXIMUM))
def test_a_namesake_never_earns_the_maximum(recipe: str) -> None:
    pairs = namesakes(1_500)
    assert len(pairs) == 1_500
    paid = []
    for truth, other in pairs:
        reply = gold_reply(recipe, truth_of(other))
        if earned(recipe, reply, truth) >= MAXIMUM[recipe] - 1e-9:
            paid.append((truth["code"], truth["name"], truth["region"], other["region"]))
    assert paid == []


@pytest.mark.parametrize(
    "text",
    [
        "<answer>\nCountry: USA\nState: Maine\nCity: Portland\nAddress: Portland, Maine, USA\n</answer>",
        "<answer>\nCountry: USA\nState: unknown\nCity: Portland, ME\nAddress: Portland\n</answer>",
        "This is Portland, Maine, in the United States.",
        json.dumps({"country": "USA", "city": "Portland", "lat": 43.66, "lon": -70.26}),
    ],
)
def test_portland_in_maine_is_not_portland_in_oregon(text: str) -> None:
    row = {"lat": 45.52, "lon": -122.68, "country": "United States", "region": "Oregon", "city": "Portland"}
    assert earned("geovista", text, row) < 4.0


@pytest.mark.parametrize(
    "text",
    [
        "<answer>\nCountry: USA\nState: OR\nCity: Portland\nAddress: Portland, Oregon, USA\n</answer>",
        "This is Portland, Oregon, in the United States.",
        "It is Portland in the United States.",
        json.dumps({"country": "USA", "city": "Portland", "lat": 45.4, "lon": -122.6}),
    ],
)
def test_the_right_portland_is(text: str) -> None:
    row = {"lat": 45.52, "lon": -122.68, "country": "United States", "region": "Oregon", "city": "Portland"}
    assert earned("geovista", text, row) == 4.0
