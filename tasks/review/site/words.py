"""Reasons, evidence and stages in words."""

import json
from typing import Any

# What each reason means, for the reviewer.
REASONS = {
    "no_imagery_near": "The service has no picture within the widest search box around the place.",
    "no_panorama_near": "There are photos near the place, but no panorama.",
    "no_photo_near": "There are panoramas near the place, but no photo.",
    "not_all_searched": "More pictures lie around the place than the search may look at; it ended before it saw all.",
    "too_few_near": "There are fewer pictures near the place than were wanted.",
    "no_scenes": "The archive has no satellite scene of the place in the dates and below the cloud cover requested.",
    "no_usable_scene": "There are scenes of the place, but none of those looked at could be read.",
    "cloudy": "Too much of the satellite picture stays under cloud or shadow, with all scenes put together.",
    "no_data": "Part of the satellite picture lies outside every scene.",
    "no_usable_image": "There are pictures near the place, but none of those tried could be used.",
    "corrupt_image": "The picture could not be decoded, also when fetched again.",
    "exact_duplicate": "The same bytes are there under another image id.",
    "near_duplicate": "Another picture looks nearly the same.",
    "sequence_leak": "The same drive also serves another split, which keeps it.",
    "mirrored_duplicate": "It is another picture turned left to right.",
    "spatial_duplicate": "Another picture of the same drive or creator stands nearly at the same point.",
    "creator_leak": "The same creator also serves another split, which keeps the pictures.",
    "radius_leak": "A picture of another split was taken too close to it.",
    "external_leak": "It is in, or close to, an external evaluation set.",
    "missing_licence": "The source names no licence.",
    "bad_time": "It claims a time at which it cannot have been taken.",
    "swapped_coordinates": "Latitude and longitude are exchanged.",
    "off_plan": "It lies far from the place it answers.",
    "wrong_country": "It lies in another country than the place it answers.",
    "disputed_address": "The geocoder names another country.",
    "contradicted_position": "Sentinel-2 sees other ground at its position than the picture shows.",
    "too_small": "It has too few pixels.",
    "blurred": "It is blurred.",
    "bad_exposure": "It is too dark, too bright, or clipped.",
    "over_compressed": "Its compression shows as blocks.",
    "nothing_but_sky_or_road": "Nearly all of it is sky or road.",
    "non_localizable": "The judge sees too few clues to tell where this is.",
    "landmark": "The judge sees an iconic sight, which tests memory rather than reasoning.",
    "no_verdict": "The judge was queried several times and never answered in the form of a verdict.",
    "place_written": "Its coordinates or the name of its country are written in it.",
    "low_score": "Localizable, but below the configured score.",
    "training_picture": "A model was, or may have been, trained on this very picture.",
    "near_training_cell": "It lies in or near a cell that a training picture lies in.",
    "not_fingerprinted": "Its marks are not known, so that copies of it cannot be found.",
    "not_drawn": "The month has more pictures than are wanted.",
    "no_address": "No country is known at this point.",
    "too_far": "The answer lies too far from where the picture was taken.",
    "tool_failed": "A tool call failed.",
    "malformed_call": "A tool call was not in the form the tool asks for.",
    "no_tool_use": "The agent answered without using a tool.",
    "no_answer": "The agent ended without an answer.",
    "unparsable": "The answer could not be read.",
}
_UNITS = {"m": "m", "km": "km", "deg": "°", "px": "px", "s": "s", "usd": "USD", "ms": "ms", "h": "h"}
_LONGEST = 600


def meaning(reason: str) -> str:
    """A sentence for a reason, or the reason itself with spaces."""
    return REASONS.get(reason) or reason.replace("_", " ").replace(".", " · ").capitalize() + "."


def evidence(text: str | None) -> str:
    """Evidence, which is stored as JSON, as a sentence a person reads."""
    try:
        facts = json.loads(text or "{}")
    except ValueError:
        return str(text)[:_LONGEST]
    if not isinstance(facts, dict):
        return _value(facts)[:_LONGEST]
    reason = facts.pop("reason", None)  # a sentence of the judge's goes first, bare
    parts = [str(reason).rstrip(".")] if isinstance(reason, str) and reason else []
    parts += [
        f"{_name(key)} {_value(value)}{_unit(key)}" for key, value in facts.items() if value not in (None, [], {})
    ]
    return (". ".join(parts[:1]) + ("; " if parts[1:] else "") + "; ".join(parts[1:]))[:_LONGEST]


def _name(key: str) -> str:
    parts = key.split("_")
    return " ".join(parts[:-1] if len(parts) > 1 and parts[-1] in _UNITS else parts)


def _unit(key: str) -> str:
    parts = key.split("_")
    return f" {_UNITS[parts[-1]]}" if len(parts) > 1 and parts[-1] in _UNITS else ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_value, value[:12])) + (f" and {len(value) - 12} more" if len(value) > 12 else "")
    if isinstance(value, dict):
        return ", ".join(f"{_name(str(key))} {_value(inner)}{_unit(str(key))}" for key, inner in value.items())
    text = str(value)
    if text.startswith(("{", "[")):  # JSON inside text, as models answer
        try:
            return _value(json.loads(text))
        except ValueError:
            return text
    return text


def moment(value: Any) -> str:
    """A time as people read it."""
    return f"{value:%Y-%m-%d %H:%M} UTC" if value is not None else ""


def day(value: Any) -> str:
    return f"{value:%Y-%m-%d}" if value is not None else ""


def place_name(*parts: str | None) -> str:
    """City · region · country, without what is missing or repeated."""
    return " · ".join(dict.fromkeys(part for part in parts if part))


def distance(km: float | None) -> str:
    if km is None or km != km:
        return "unknown distance"
    return f"{km * 1000:,.0f} m" if km < 1 else f"{km:,.1f} km" if km < 100 else f"{km:,.0f} km"


def share(row: dict[str, Any], digits: int = 0) -> str:
    """A score as a share, with its interval where it has one."""
    if row["value"] is None:
        return "–"
    told = f"{100 * row['value']:.{digits}f} %"
    if row["low"] is None or row["high"] is None:
        return told
    return f"{told} ({100 * row['low']:.{digits}f} to {100 * row['high']:.{digits}f})"


def passes(row: dict[str, Any]) -> str:
    """How many of a picture's tries were within each threshold."""
    counts = zip(row["threshold_km"] or (), row["passes"] or (), strict=False)
    return ", ".join(f"{count} of {row['k']} within {km:g} km" for km, count in counts)
