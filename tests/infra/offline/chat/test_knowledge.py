"""Knowledge by degrees, and temperature that matters."""

from __future__ import annotations

import random
from typing import Any

from infra.offline.chat.answerer import BASE, LARGE, SMALL, Option, _confidence
from infra.offline.chat.figures import Measured, report
from infra.offline.chat.knowledge import familiarity, recalls, remembered, towns_of_area
from infra.offline.chat.measure import away_km
from infra.offline.chat.placenames import place_names
from infra.offline.facts import area_code
from infra.offline.gazetteer import admin1_names


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
    off = [away_km(remembered(london, skill.memory, dice, 0.0), (london.lat, london.lon)) for skill in (SMALL, LARGE)]
    assert off[1] < off[0] < 5
    spread = {remembered(london, BASE.memory, dice, 1.0) for _ in range(8)}
    assert len(spread) == 8


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

    def sure(found_by: str, *rivals: Option, score: float = 3.0) -> float:
        return _confidence([Option(lyon, score, found_by, ""), *rivals], LARGE)

    behind = Option(far, 1.0, "name", "")
    assert sure("name", behind) > 0.85 > sure("area", behind) > sure("country", behind)
    # Whichever of two neighbours it is, the answer is within 25 km.
    assert sure("name", behind, Option(near, 2.9, "name", "")) == sure("name", behind)
    assert sure("name", Option(far, 2.9, "name", "")) < 0.8
    assert 0.01 <= sure("country", *[Option(far, 9.0, "name", "")] * 9) < 0.05


def test_the_report_measures_calibration(capsys: Any) -> None:
    def rows(said: float, right: int) -> list[Measured]:
        errors = [1.0] * right + [999.0] * (10 - right)
        return [Measured("first", "yes", {"m": error}, [error] * 8, {"m": said}) for error in errors]

    report(rows(0.8, 8) + rows(0.1, 1))
    assert "answers that say 0.80: 0.80 are right, of 10" in (told := capsys.readouterr().out)
    assert "expected calibration error     0.00  (0 to 0.05: holds)" in told
    report(rows(0.9, 5) + rows(0.1, 1))
    assert "expected calibration error     0.20  (0 to 0.05: DOES NOT HOLD)" in capsys.readouterr().out


def test_the_report_wants_more_answers_right_where_clues_are_more(capsys: Any) -> None:
    def rows(clues: str, right: int) -> list[Measured]:
        errors = [20.0] * right + [999.0] * (10 - right)
        return [Measured("first", "yes", {"m": error}, [error] * 8, {"m": 0.5}, clues=clues) for error in errors]

    report(rows("rich", 7) + rows("none", 1) + rows("some", 4))
    assert "clues some         <1 km 0 %  <25 km 40 %" in (told := capsys.readouterr().out)
    assert "least gain by a grade of clues 0.22  (0 or more: holds)" in told
    report(rows("none", 1) + rows("weak", 3) + rows("rich", 2))
    assert "least gain by a grade of clues -0.07  (0 or more: DOES NOT HOLD)" in capsys.readouterr().out


def test_the_report_says_what_does_not_hold(capsys: Any) -> None:
    def row(passes: int) -> Measured:
        trials = [0.5] * passes + [9000.0] * (8 - passes)
        single = {"answerer-small": 1.0, "answerer-large": 1.0}
        return Measured("first", "localizable", single, trials, dict.fromkeys(single, 0.5))

    assert not report([row(8)] * 10)
    assert "learnable at 1 km              0.00  (0.25 to 0.5: DOES NOT HOLD)" in capsys.readouterr().out
    report([row(4)] * 4 + [row(0)] * 6)
    assert "learnable at 25 km             0.40  (0.25 to 0.5: holds)" in capsys.readouterr().out
