"""GeoAgent's reward, eq. 3-9: spatial and semantic similarity of the address, and consistency of the reasoning.

Constants are those of the paper's Table 5. It names neither the lambda and mu of eq. 9 nor the set over which eq. 9
takes its minimum and maximum; `LAMBDA`, `MU` and `normalised_lengths` say what is done here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tasks.geo.distance import distance_km
from tasks.reward.answer import Address, parse_answer
from tasks.reward.levels import LEVELS, known_names, level_names, same_name
from tasks.reward.outcome import Excluded, Scored, Truth, excluded_by
from tasks.services.errors import ServiceError

SPATIAL, SEMANTIC, CONSISTENCY = 1.5, 1.0, 0.5  # a_1, a_2, a_3
TAU_KM = 200.0
LEVEL_WEIGHTS = (0.1, 0.6, 0.3)  # alpha_i and w_i: country, region, place
# delta_1 and delta_2. The paper has no third; 0 keeps a negative cosine from costing reward.
THRESHOLDS = (0.7, 0.5, 0.0)
# Not in the paper: the curve goes from 0.007 for the shortest reasoning over 0.5 to 0.993 for the longest.
LAMBDA, MU = 10.0, 0.5

Embed = Callable[[Sequence[str]], ArrayLike]  # texts -> one vector each
Geocode = Callable[[str], tuple[float, float] | None]  # address -> lat, lon; None: no such place


@dataclass(frozen=True)
class Consistency:
    """What a second model concluded from the reasoning alone, and that reasoning, country / region / place.

    `against` is what its conclusions must equal: None for the truth, as eq. 8 is explained in the paper, or the
    answer's own address, as the aim of the reward (reasoning that supports its conclusion) would have it.
    """

    concluded: Address
    reasoning: tuple[str, str, str]
    against: Address | None = None
    length_bounds: tuple[tuple[int, int], ...] | None = None  # min, max a level over the group; None: over the levels


def spatial_similarity(error_km: float) -> float:
    """R_spa, eq. 5."""
    return math.exp(-error_km / TAU_KM)


def semantic_similarity(predicted: Address, truth: Address, embed: Embed) -> float:
    """R_sem, eq. 6-7: weighted cosines; a level counts if above its threshold and if the one above it counted.

    A level the truth does not have is left out and the other weights grow to sum to 1, as a missing third level
    (`Zambia; Lusaka Province;` in the paper's own data) must not cost a right answer its reward.
    """
    true_levels, said_levels = list(level_names(truth).values()), list(level_names(predicted).values())
    present = [i for i, name in enumerate(true_levels) if name]
    texts = [text or "" for i in present for text in (said_levels[i], true_levels[i])]
    if not present:
        return 0.0
    vectors = np.asarray(embed(texts), dtype=np.float64).reshape(len(texts), -1)
    total = 0.0
    for place, i in enumerate(present):
        if not said_levels[i]:
            break
        similarity = _cosine(vectors[2 * place], vectors[2 * place + 1])
        if not similarity > THRESHOLDS[i]:
            break
        total += LEVEL_WEIGHTS[i] * similarity
    return total / sum(LEVEL_WEIGHTS[i] for i in present)


def consistency(found: Consistency, truth: Address) -> float:
    """R_con, eq. 8: weights of the rightly concluded levels, each times its length factor p_i."""
    reference = truth if found.against is None else found.against
    known = known_names(reference)
    weights = {level: weight for level, weight in zip(LEVELS, LEVEL_WEIGHTS, strict=True) if known[level]}
    lengths = normalised_lengths([len(text.strip()) for text in found.reasoning], found.length_bounds)
    concluded = level_names(found.concluded)
    total = sum(
        weights[level] * length_factor(length)
        for level, length in zip(LEVELS, lengths, strict=True)
        if level in weights and same_name(concluded[level], known[level])
    )
    return total / sum(weights.values()) if weights else 0.0


def length_factor(normalised: float, steepness: float = LAMBDA, middle: float = MU) -> float:
    """p_i, eq. 9."""
    return 1.0 / (1.0 + math.exp(-steepness * (normalised - middle)))


def normalised_lengths(lengths: Sequence[int], bounds: Sequence[tuple[int, int]] | None = None) -> tuple[float, ...]:
    """The lengths of eq. 9, min-max normalised to 0..1: over the reply's own levels, or within given bounds a level.

    Where all lengths are equal the formula is 0/0: no level is then thinner than another and all count in full,
    but a reply without any reasoning counts nothing.
    """
    if bounds is None:
        bounds = [(min(lengths), max(lengths))] * len(lengths)
    return tuple(
        min(1.0, max(0.0, (length - low) / (high - low))) if high > low else float(length > 0)
        for length, (low, high) in zip(lengths, bounds, strict=True)
    )


def score(
    answer_text: str | None,
    truth: Truth,
    geocode: Geocode,
    embed: Embed,
    consistent: Consistency | None = None,
) -> Scored | Excluded:
    """R, eq. 3, of one answer. Without a second model's reading the third term is left out."""
    answer = parse_answer(answer_text)
    if not answer.address:
        return Scored(0.0, reason=getattr(answer, "reason", "no_address"))
    names = [name for name in reversed(level_names(answer.address).values()) if name]
    try:
        point = _find(geocode, ", ".join(names))
        similarity = semantic_similarity(answer.address, truth.address, embed)
    except ServiceError as error:
        return excluded_by(error)
    error_km = None if point is None else distance_km(*point, truth.lat, truth.lon)
    parts = {"spatial": 0.0 if error_km is None else spatial_similarity(error_km), "semantic": similarity}
    reward = SPATIAL * parts["spatial"] + SEMANTIC * parts["semantic"]
    if consistent is not None:
        parts["consistency"] = consistency(consistent, truth.address)
        reward += CONSISTENCY * parts["consistency"]
    return Scored(reward, error_km=error_km, parts=parts)


def _find(geocode: Geocode, address: str) -> tuple[float, float] | None:
    """The point of an address. That there is no such place is the answer's fault, everything else the service's."""
    try:
        return geocode(address)
    except ServiceError as error:
        if error.kind == "not_found":
            return None
        raise


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, float(a @ b) / norm) if norm > 0 else 0.0
