"""The faults of a campaign: every kind the offline world has for the services that collecting asks."""

from typing import Any

_BUSY = (429, 500, 502, 503, 504)
# 403 is a rate limit of the Graph API; of the image host and of the asset host it is an address that never passes, and
# of a STAC API a closed door. 402 is only for geocoders and searches, which are not asked here.
_STATUSES = {"mapillary": (*_BUSY, 403), "mapillary-tiles": (*_BUSY, 403)}
# `invalid_json` halves any body and gives its length as right: half a JPEG, half a range of a scene.
_CUTS = ("reset", "truncate", "content_type", "invalid_json")
_KINDS = {
    "mapillary": (*_CUTS, "drift", "duplicate_ids"),
    "mapillary-cdn": (*_CUTS, "expired_url"),
    "mapillary-tiles": ("reset", "truncate", "content_type"),
    "stac": (*_CUTS, "drift", "duplicate_ids"),
    "sas": (*_CUTS, "expired_url"),
    "blob": (*_CUTS, "expired_url"),
}
SKEW_S = 7200.0
LOST = 0.01  # share of the pictures that are listed but gone from the host, and known to the host but not to the API
CHANGED = 0.05  # share of the pictures that have other bytes from the middle of the campaign on


def rules(share: float, late: bool = False) -> list[dict[str, Any]]:
    """Faults of every kind, each as often as the others, together the share of requests.

    Besides, what leaves an answer as it is: slow ones, and clocks that go wrong; and pictures that are gone. `late`:
    some of the pictures are replaced, also those that were fetched by half.
    """
    found: list[dict[str, Any]] = []
    for service, kinds in _KINDS.items():
        every = [{"kind": "status", "status": status} for status in _STATUSES.get(service, _BUSY)]
        every += [{"kind": kind} for kind in kinds]
        # Each rule draws for itself: the shares of all together are 1 - (1 - rate) ** number.
        rate = 1 - (1 - share) ** (1 / len(every))
        found += [{"service": service, "rate": rate, **one} for one in every]
        found.append({"service": service, "kind": "slow_drip", "seconds": 2.0, "rate": 0.02})
    for service, ahead_s in (("mapillary", -SKEW_S), ("mapillary-cdn", SKEW_S), ("sas", -SKEW_S), ("blob", SKEW_S)):
        found.append({"service": service, "kind": "clock_skew", "seconds": ahead_s, "rate": 0.02})
    found += [{"service": service, "kind": "deleted", "rate": LOST} for service in ("mapillary", "mapillary-cdn")]
    if late:
        found.append({"service": "mapillary-cdn", "kind": "changed", "rate": CHANGED})
    return found
