"""GeoVista's hierarchical reward, eq. 4: beta^2 for the right city, beta for the state, 1 for the country, else 0."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.geo.distance import distance_km
from tasks.reward.answer import Address, ParsedAnswer, ParseFailure, parse_answer
from tasks.reward.levels import Aliases, Level, level_names, levels_by_rule
from tasks.reward.outcome import Excluded, Scored, Truth, excluded_by
from tasks.services.errors import ServiceError

BETA = 2.0

Verifier = Callable[[Level, str, str], bool]  # level, the answer's text, the true name -> right?


@dataclass(frozen=True)
class LevelVerdict:
    """One level's verdicts; `model` is None where no verifier was asked."""

    rule: bool
    model: bool | None = None

    @property
    def right(self) -> bool:
        return self.rule or bool(self.model)


def reward_for(country: bool, province_or_state: bool, city: bool, beta: float = BETA) -> float:
    """r: what the finest right level is worth."""
    if beta <= 1:
        raise ValueError(f"beta is {beta}, but finer levels are worth more only above 1")
    return beta**2 if city else beta if province_or_state else 1.0 if country else 0.0


def verdicts(
    answer: ParsedAnswer | ParseFailure,
    truth: Address,
    verifier: Verifier | None = None,
    aliases: Aliases | None = None,
) -> dict[Level, LevelVerdict | None]:
    """Both verdicts a level; the model is asked only where the rule says no and there is something to judge."""
    names = level_names(truth)
    found: dict[Level, LevelVerdict | None] = {}
    for level, rule in levels_by_rule(answer, truth, aliases).items():
        name = names[level]
        if rule is None or name is None:
            found[level] = None
        elif rule or verifier is None or not answer.text.strip():
            found[level] = LevelVerdict(rule)
        else:
            found[level] = LevelVerdict(rule, verifier(level, answer.text, name))
    return found


def score(
    answer_text: str | None,
    truth: Truth,
    verifier: Verifier | None = None,
    aliases: Aliases | None = None,
    beta: float = BETA,
) -> Scored | Excluded:
    """The reward of one answer. A truth without a city has its maximum at its own finest level."""
    answer = parse_answer(answer_text)
    try:
        found = verdicts(answer, truth.address, verifier, aliases)
    except ServiceError as error:
        return excluded_by(error)
    right = {level: verdict is not None and verdict.right for level, verdict in found.items()}
    reward = reward_for(right["country"], right["province_or_state"], right["city"], beta)
    error_km = None
    if isinstance(answer, ParsedAnswer) and answer.lat is not None and answer.lon is not None:
        error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
    # Prose is a fair answer here; only an empty one could not be read.
    reason = answer.reason if isinstance(answer, ParseFailure) and not answer.text.strip() else None
    return Scored(reward, reason, error_km, {level: float(value) for level, value in right.items()})
