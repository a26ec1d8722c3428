"""One score per recipe, behind one call."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.reward import geoagent, geovista, spotagent, thinking_with_map
from tasks.reward.levels import Aliases
from tasks.reward.outcome import Excluded, Scored, Truth


@dataclass(frozen=True)
class Aids:
    """What a recipe's score needs beside answer and truth. Each is a plain function that may raise `ServiceError`."""

    geocode: geoagent.Geocode | None = None
    embed: geoagent.Embed | None = None
    consistent: geoagent.Consistency | None = None
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
