"""SpotAgent's reward: piecewise linear in distance, eq. 8. No format reward; what cannot be read earns nothing."""


def reward_at(error_km: float) -> float:
    """R(d): 1 below 1 km, linear to 0.75 at 25 km, linear towards 0.2 at 200 km, nothing from there on."""
    if error_km < 1:
        return 1.0
    if error_km < 25:
        return 1.0 - 0.25 / 24 * (error_km - 1)
    if error_km < 200:
        return 0.75 - 0.55 / 175 * (error_km - 25)
    return 0.0  # NaN too: it fails every comparison
