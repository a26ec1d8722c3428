"""One score per recipe, behind one call: `reward_for(recipe, settings)` for trainers, Pass@K and evaluation."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from schemas.errors import GeofixError
from schemas.settings.reward import RewardSettings
from tasks.reward import geoagent, geovista, spotagent, thinking_with_map
from tasks.reward.answer import Address
from tasks.reward.asked import AskedServices
from tasks.reward.levels import Aliases
from tasks.reward.outcome import Excluded, Scored, Truth
from tasks.services import Connections


@dataclass(frozen=True)
class Aids:
    """What a recipe's score needs beside answer and truth. Each is a plain function that may raise `ServiceError`."""

    geocode: geoagent.Geocode | None = None
    embed: geoagent.Embed | None = None
    consistent: geoagent.Consistency | geoagent.Reader | None = None
    verifier: geovista.Verifier | None = None
    aliases: Aliases | None = None
    beta: float = geovista.BETA


def _geoagent(answer_text: str | None, truth: Truth, aids: Aids) -> Scored | Excluded:
    if aids.geocode is None or aids.embed is None:
        raise ValueError("recipe geoagent scores addresses: give Aids a geocode and an embed function")
    return geoagent.score(answer_text, truth, aids.geocode, aids.embed, aids.consistent)


Scorer = Callable[[str | None, Truth, Aids], Scored | Excluded]
SCORERS: dict[str, Scorer] = {
    "spotagent": lambda answer, truth, _: spotagent.score(answer, truth),
    "thinking-with-map": lambda answer, truth, _: thinking_with_map.score(answer, truth),
    "geovista": lambda answer, truth, aids: geovista.score(answer, truth, aids.verifier, aids.aliases, aids.beta),
    "geoagent": _geoagent,
}


def score(
    recipe: str,
    answer_text: str | None,
    truth: Truth,
    aids: Aids | None = None,
    tool_outage: str | None = None,
) -> Scored | Excluded:
    """The reward of one answer under a recipe, or its exclusion when a tool or service failed it.

    `tool_outage` is what broke during the rollout itself, if anything did; an answer given without its tools says
    nothing about the policy.
    """
    if recipe not in SCORERS:
        raise ValueError(f"recipe {recipe!r} has no reward; those that have are {', '.join(sorted(SCORERS))}")
    if tool_outage is not None:
        return Excluded(tool_outage)
    return SCORERS[recipe](answer_text, truth, aids or Aids())


TRUTH_COLUMNS = ("lat", "lon", "country", "region", "city")


def truth_of(row: Mapping[str, Any]) -> Truth:
    """The truth in a row's columns lat, lon, country, region, city, of which the last three may be missing."""
    country, region, city = (_name(row.get(name)) for name in TRUTH_COLUMNS[2:])
    return Truth(float(row["lat"]), float(row["lon"]), Address(country, region, city))


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


@dataclass(frozen=True)
class Reward:
    """A recipe's reward, ready to be asked: `reward(text, lat=…, lon=…, country=…, region=…, city=…)`."""

    recipe: str
    aids: Aids
    concurrency: int = 1

    def __call__(
        self,
        text: str | None,
        lat: float,
        lon: float,
        country: str | None = None,
        region: str | None = None,
        city: str | None = None,
        tool_outage: str | None = None,
    ) -> Scored | Excluded:
        truth = truth_of({"lat": lat, "lon": lon, "country": country, "region": region, "city": city})
        return score(self.recipe, text, truth, self.aids, tool_outage)

    def many(
        self,
        texts: Sequence[str | None],
        rows: Sequence[Mapping[str, Any]],
        outages: Sequence[str | None] | None = None,
    ) -> list[Scored | Excluded]:
        """The outcomes of several answers, in order; services are asked for some of them at the same time."""
        broken = list(outages) if outages is not None else [None] * len(texts)
        cases = list(zip(texts, rows, broken, strict=True))

        def one(case: tuple[str | None, Mapping[str, Any], str | None]) -> Scored | Excluded:
            return score(self.recipe, case[0], truth_of(case[1]), self.aids, case[2])

        if self.concurrency == 1 or len(cases) < 2:
            return [one(case) for case in cases]
        with ThreadPoolExecutor(min(self.concurrency, len(cases))) as pool:
            return list(pool.map(one, cases))


def reward_for(recipe: str, settings: RewardSettings | None = None, connections: Connections | None = None) -> Reward:
    """The recipe's reward with the services its settings name; `connections` are needed where it asks any."""
    settings = settings or RewardSettings()
    if recipe not in SCORERS:
        known = ", ".join(sorted(SCORERS))
        raise GeofixError(f"recipe '{recipe}' has no reward to train with; those that have are {known}")
    asks = recipe == "geoagent" or (recipe == "geovista" and settings.verifier is not None)
    if not asks:
        return Reward(recipe, Aids(beta=settings.beta))
    if connections is None:
        raise GeofixError(f"the reward of recipe '{recipe}' asks services: give reward_for the connections")
    services = AskedServices(connections, settings)
    if recipe == "geovista":
        return Reward(recipe, Aids(verifier=services.verify, beta=settings.beta), settings.concurrency)
    reader = services.read if settings.consistency is not None else None
    return Reward(recipe, Aids(geocode=services.geocode, embed=services.embed, consistent=reader), settings.concurrency)
