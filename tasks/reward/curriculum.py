"""When phase II of SpotAgent's curriculum begins: once the reward on validation has stopped rising."""

from collections.abc import Sequence

RISE, VALIDATIONS = 0.005, 3


def converged(validation_rewards: Sequence[float], rise: float = RISE, validations: int = VALIDATIONS) -> bool:
    """Whether the best of the last `validations` is less than `rise` above the best before them.

    Before there are more than that many validations nothing can have converged.
    """
    if validations < 1:
        raise ValueError(f"validations is {validations}; it must be 1 at least")
    if len(validation_rewards) <= validations:
        return False
    before, last = validation_rewards[:-validations], validation_rewards[-validations:]
    return max(last) < max(before) + rise
