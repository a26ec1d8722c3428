"""Knowledge by degrees, and temperature that matters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from infra.offline.chat.answerer import BASE, LARGE, SMALL, _confidence
from infra.offline.chat.beliefs import Guess
from infra.offline.chat.placenames import familiarity, place_names, recalls, remembered, towns_of_area
from infra.offline.facts import area_code
from infra.offline.gazetteer import admin1_names
from tasks.geo.distance import distance_km


def test_towns_are_known_by_size_by_company_and_by_model() -> None:
    london = place_names().named("London")[0].place
    villages = [place for place in place_names().places[::2000] if 500 < place.population < 3000]
    for skill in (SMALL, BASE, LARGE):
        assert familiarity(london, skill.memory) > 0.9
    small, large = (sum(familiarity(v, s.memory) for v in villages) / len(villages) for s in (SMALL, LARGE))
    assert small < 0.25 < large
    dice = random.Random(1)
    doubtful = next(v for v in villages if 0.3 < familiarity(v, BASE.memory) < 0.45)
    drawn = [recalls(doubtful, BASE.memory, dice, 1.0) for _ in range(200)]
    assert 40 < sum(drawn) < 110 and not recalls(doubtful, BASE.memory, dice, 0.0)


def test_what_is_known_better_is_remembered_more_exactly() -> None:
    dice = random.Random(2)
    london = place_names().named("London")[0].place
    off = [
        distance_km(*remembered(london, skill.memory, dice, 0.0), london.lat, london.lon) for skill in (SMALL, LARGE)
    ]
    assert off[1] < off[0] < 5
    spread = {remembered(london, BASE.memory, dice, 1.0) for _ in range(8)}
    assert len(spread) == 8


def test_a_traveler_knows_the_towns_of_one_continent_better_and_others_worse(ask: Any, scenes: Any) -> None:
    villages = [place for place in place_names().places[::500] if 500 < place.population < 3000]
    at_home = [v for v in villages if v.country in ("FR", "DE", "PL")]
    abroad = [v for v in villages if v.country in ("IN", "BR", "US")]
    told = replace(BASE, home="EU")

    def known(places: list[Any], skill: Any) -> float:
        return float(sum(familiarity(place, skill.memory_of(place)) for place in places)) / len(places)

    assert known(at_home, told) > known(at_home, BASE) + 0.2 and known(abroad, told) < known(abroad, BASE) - 0.1
    picture = scenes.message(scenes.draw(["Boulangerie Lamberneau", "Rue Montviret"]))
    said = [
        ask("answerer-base", [*system, picture], temperature=0)["choices"][0]["message"]["content"]
        for system in ([], [{"role": "system", "content": "You are a traveler around Asia."}])
    ]
    assert all("<answer>" in text for text in said)


def test_pages_that_an_answerer_is_sent_name_the_town_of_the_signs(ask: Any, scenes: Any) -> None:
    drawn = scenes.draw(["Boulangerie Lamberneau", "Rue Montviret"])
    page = "Page 1: Boulangerie Lamberneau. Boulangerie Lamberneau stands in the Rue Montviret, Aurillac, France."

    def said(words: str) -> str:
        asked = scenes.message(drawn)
        asked["content"].append({"type": "text", "text": words})
        return str(ask("answerer-large", [asked], temperature=0)["choices"][0]["message"]["content"])

    assert "Aurillac" not in said("Where is it?") and "Aurillac" in said(f"{page}\nWhere is it?")
    query = said('Which web search would help? Reply with JSON {"queries": ["…"]}.')
    assert "Lamberneau" in query and query.startswith('{"queries"')


def test_area_digits_are_public() -> None:
    name = next(name for code, name in admin1_names().items() if code.startswith("FR.") and "Alpes" in name)
    assert "Lyon" in {town.name for town in towns_of_area("FR", area_code("FR", name))}


def test_warm_models_differ_and_cold_ones_do_not(ask: Any, scenes: Any) -> None:
    tool = {"type": "function", "function": {"name": "search_web", "description": "Search.", "parameters": {
        "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}  # fmt: skip
    picture = scenes.message(scenes.draw(["Boulangerie Lamberneau", "Rue Montviret", "Pharmacie Belmont"]))

    def first(temperature: float, seed: int) -> str:
        message = ask("agent", [picture], tools=[tool], temperature=temperature, seed=seed)["choices"][0]["message"]
        return str([call["function"] for call in message.get("tool_calls", ())]) + str(message["content"])

    assert len({first(1.0, seed) for seed in range(8)}) >= 4
    assert len({first(0.0, seed) for seed in range(3)}) == 1
    assert first(1.0, 3) == first(1.0, 3)


def test_confidence_follows_what_a_town_was_found_by_and_its_rivals_elsewhere() -> None:
    lyon, near, far = (place_names().named(name)[0].place for name in ("Lyon", "Villeurbanne", "Lille"))

    def sure(found_by: str, *rivals: Guess, score: float = 3.0) -> float:
        return _confidence([Guess(lyon, score, "", found_by), *rivals], LARGE)

    behind = Guess(far, 1.0, "", "name")
    assert sure("name", behind) > 0.85 > sure("area", behind) > sure("country", behind)
    # Whichever of two neighbours it is, the answer is within 25 km.
    assert sure("name", behind, Guess(near, 2.9, "", "name")) == sure("name", behind)
    assert sure("name", Guess(far, 2.9, "", "name")) < 0.8
    assert 0.01 <= sure("country", *[Guess(far, 9.0, "", "name")] * 9) < 0.05
