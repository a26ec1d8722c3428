"""GeoVista's hierarchical reward, eq. 4: beta^2 for the right city, beta for the state, 1 for the country, else 0."""

from schemas.settings.reward import RewardSettings
from tasks.geo.distance import distance_km
from tasks.recipes.recipe import RecipeReward
from tasks.reward.answer import ParsedAnswer, ParseFailure, parse_answer
from tasks.reward.levels import Aliases, Verifier, verdicts
from tasks.reward.outcome import Excluded, Scored, Truth, excluded_by
from tasks.reward.services import VERIFIER, RewardDeps
from tasks.services.errors import ServiceError

BETA = 2.0


def level_reward(
    country: bool, province_or_state: bool, city: bool, beta: float = BETA, hierarchical: bool = True
) -> float:
    """r: what the finest right level is worth; not `hierarchical`: 1 for the city and nothing else."""
    if beta <= 1:
        raise ValueError(f"beta is {beta}, but finer levels are worth more only above 1")
    if not hierarchical:
        return float(city)
    return beta**2 if city else beta if province_or_state else 1.0 if country else 0.0


def score(
    answer_text: str | None,
    truth: Truth,
    verifier: Verifier | None = None,
    aliases: Aliases | None = None,
    beta: float = BETA,
    hierarchical: bool = True,
) -> Scored | Excluded:
    """The reward of one answer. A truth without a city has its maximum at its own finest level."""
    answer = parse_answer(answer_text)
    try:
        by_level = verdicts(answer, truth.address, verifier, aliases, (truth.lat, truth.lon))
    except ServiceError as error:
        return excluded_by(error)
    right = {level: verdict is not None and verdict.right for level, verdict in by_level.items()}
    reward = level_reward(right["country"], right["province_or_state"], right["city"], beta, hierarchical)
    error_km = None
    if isinstance(answer, ParsedAnswer) and answer.lat is not None and answer.lon is not None:
        error_km = distance_km(answer.lat, answer.lon, truth.lat, truth.lon)
    # Prose is a fair answer here; only an empty one could not be read.
    reason = answer.reason if isinstance(answer, ParseFailure) and not answer.text.strip() else None
    return Scored(reward, reason, error_km, {level: float(value) for level, value in right.items()})


def _score(answer_text: str | None, truth: Truth, deps: RewardDeps) -> Scored | Excluded:
    return score(answer_text, truth, deps.verifier, deps.aliases, deps.settings.beta, deps.settings.hierarchical)


def _roles(settings: RewardSettings) -> tuple[str, ...]:
    return (settings.verifier,) if settings.verifier is not None else ()


REWARD = RecipeReward(
    _score,
    asks=lambda settings: ("chat",) if _roles(settings) else (),
    roles=_roles,
    words=lambda settings: (VERIFIER,) if _roles(settings) else (),
)
