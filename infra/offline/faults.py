"""Faults on demand: what goes wrong, at which service, how often, and what the service then answers.

The same requests meet the same faults every time.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Self

from infra.offline.data import read_table
from infra.offline.seeded_random import fraction, key_of

SERVICES = (
    "mapillary", "mapillary-cdn", "mapillary-tiles", "panoramax", "nominatim", "google", "opencage", "tavily", "you",
    "maps", "places", "vision", "openai", "stac", "sas", "blob",
)  # fmt: skip
STATUSES = (402, 403, 429, 500, 502, 503, 504)
KINDS = (
    "latency", "status", "reset", "truncate", "content_type", "invalid_json", "expired_url", "slow_drip",
    "clock_skew", "duplicate_ids", "deleted", "changed", "drift",
)  # fmt: skip
DRIFTS = ("rename", "retype", "drop")
# What befalls images, and the services that can tell of it; of others such a rule would do nothing.
_OF_IMAGES = {
    "deleted": ("mapillary", "mapillary-tiles", "mapillary-cdn", "panoramax"),
    "changed": ("mapillary-cdn", "panoramax"),
}
Answer = tuple[int, bytes, str, dict[str, str]]  # status, body, content type, headers
_REASONS = {
    402: "Payment Required", 403: "Forbidden", 429: "Too Many Requests", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Time-out",
}  # fmt: skip
# Where the services keep their records, outermost first.
_LISTS = ("data", "results", "features", "web", "pois", "tips", "places", "suggestions", "choices")


@dataclass(frozen=True)
class Fault:
    """One rule. It strikes by `rate`, a share of requests, or by `at`, numbers of requests of a service (from 0).

    `deleted` and `changed` differ: the rate is a share of the images, which stay so, and the script a list of `ids`.
    """

    service: str  # one of SERVICES, or "*"
    kind: str
    rate: float = 0.0
    at: tuple[int, ...] = ()
    status: int = 500  # for kind "status"
    seconds: float = 0.2  # "latency", "slow_drip": how much longer it takes; "clock_skew": how far its clock is ahead
    ids: tuple[str, ...] = ()  # for "deleted" and "changed"
    retry_after: int | None = None  # for "status": seconds in the Retry-After header; None: as the service is used to
    field: str = ""  # for "drift": the field that changes; empty: one is drawn
    how: str = ""  # for "drift": one of DRIFTS; empty: drawn

    def __post_init__(self) -> None:
        if self.service not in (*SERVICES, "*"):
            raise ValueError(f"service: {self.service!r}; one of {', '.join(SERVICES)} or * is needed")
        if self.kind not in KINDS:
            raise ValueError(f"kind: {self.kind!r}; one of {', '.join(KINDS)} is needed")
        if self.service not in ("*", *_OF_IMAGES.get(self.kind, SERVICES)):
            raise ValueError(
                f"service: {self.service!r} has no images to be {self.kind}; "
                f"{', '.join(_OF_IMAGES[self.kind])} or * is needed"
            )
        if self.kind == "status" and self.status not in STATUSES:
            raise ValueError(f"status: {self.status}; one of {STATUSES} is needed")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"rate: {self.rate}; a share between 0 and 1 is needed")
        if not math.isfinite(self.seconds) or (self.seconds < 0 and self.kind != "clock_skew"):
            raise ValueError(f"seconds: {self.seconds}; must not be negative")
        if self.retry_after is not None and self.retry_after < 0:
            raise ValueError(f"retry_after: {self.retry_after}; must not be negative")
        if self.how not in ("", *DRIFTS):
            raise ValueError(f"how: {self.how!r}; one of {', '.join(DRIFTS)} is needed")


class Faults:
    """The faults in force and a tally of requests and strikes."""

    def __init__(self, rules: list[Fault] | None = None, seed: int = 0) -> None:
        self.replace(rules or [], seed)
        self.requests: Counter[str] = Counter()
        self.statuses: dict[str, Counter[str]] = {}
        self.struck: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.journal: list[tuple[float, str, str, str]] | None = None  # time, service, request, outcome

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Faults from `{"seed": 0, "rules": [{"service": "tavily", "kind": "status", "status": 429, "rate": 0.1}]}`."""
        faults = cls()
        faults.replace(*parse(json.loads(text)))
        return faults

    def replace(self, rules: list[Fault], seed: int = 0) -> None:
        """Puts other rules in force; counting of requests for `at` and of repeats for `rate` starts anew."""
        self.rules, self.seed = list(rules), seed
        self._count: Counter[str] = Counter()
        self._repeat: Counter[str] = Counter()

    def to_json(self) -> dict[str, Any]:
        """The rules in force."""
        return {"seed": self.seed, "rules": [asdict(rule) for rule in self.rules]}

    def strike(self, service: str, request: str) -> list[Fault]:
        """The faults this request meets.

        A rate is drawn from the request's own text and how often it was sent before, not from the order of arrival:
        any number of concurrent clients meets the same faults, and a retry may pass.
        """
        if not self.rules:
            return []
        number, self._count[service] = self._count[service], self._count[service] + 1
        repeat, self._repeat[request] = self._repeat[request], self._repeat[request] + 1
        struck = []
        for i, rule in enumerate(self.rules):
            if rule.service not in ("*", service) or rule.kind in _OF_IMAGES:
                continue
            if number in rule.at or (rule.rate and fraction(self.seed, "fault", i, request, repeat) < rule.rate):
                struck.append(rule)
                self.struck[f"{service}:{rule.kind}"] += 1
        return struck

    def is_deleted(self, service: str, image_id: str) -> bool:
        """Whether an image is gone from a service; the same answer every time, as long as the rules stand."""
        return self._about("deleted", service, image_id) > 0

    def changes(self, service: str, image_id: str) -> int:
        """How often an image's bytes were replaced: once for each rule that says so."""
        return self._about("changed", service, image_id)

    def _about(self, kind: str, service: str, image_id: str) -> int:
        return sum(
            rule.kind == kind
            and rule.service in ("*", service)
            and (image_id in rule.ids or bool(rule.rate and fraction(self.seed, kind, image_id) < rule.rate))
            for rule in self.rules
        )

    def note(self, service: str, request: str, outcome: str) -> None:
        """Writes an answered request down, if a journal is kept."""
        if self.journal is not None:
            self.journal.append((time.time(), service, request, outcome))

    def log(self) -> dict[str, Any]:
        """Counts of requests, statuses, body bytes and faults per service since the start or the last clearing."""
        return {
            "requests": dict(self.requests),
            "statuses": {service: dict(counts) for service, counts in self.statuses.items()},
            "bytes": dict(self.sent_bytes),
            "faults": dict(self.struck),
        }

    def clear_log(self) -> None:
        """Sets all counts of the log to zero."""
        self.requests.clear()
        self.statuses.clear()
        self.struck.clear()
        self.sent_bytes.clear()
        if self.journal is not None:
            self.journal.clear()


def parse(value: Any) -> tuple[list[Fault], int]:
    """(rules, seed) from JSON; ValueError says which field is wrong."""
    if not isinstance(value, dict) or not isinstance(value.get("rules", []), list):
        raise ValueError('an object like {"seed": 0, "rules": [...]} is needed')
    allowed = {field.name for field in fields(Fault)}
    rules = []
    for i, row in enumerate(value.get("rules", [])):
        if not isinstance(row, dict) or not {"service", "kind"} <= row.keys() <= allowed:
            raise ValueError(f"rules[{i}]: service and kind are needed; allowed are {', '.join(sorted(allowed))}")
        try:
            rules.append(Fault(**{**row, "at": tuple(row.get("at", ())), "ids": tuple(row.get("ids", ()))}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"rules[{i}].{error}") from error
    return rules, int(value.get("seed", 0))


def error_answer(service: str, status: int) -> Answer:
    """What a service answers when it fails with a status; some answer 200 and tell the trouble in the body."""
    reason = _REASONS.get(status, "Internal Server Error")
    page = f"<html><head><title>{status} {reason}</title></head></html>".encode()
    return _answers().get((service, str(status))) or (status, page, "text/html", {})


@lru_cache(maxsize=1)
def _answers() -> dict[tuple[str, str], Answer]:
    """The error answers of the services that have some of their own, by service and status."""
    return {
        (row["service"], row["status"]): (
            int(row["sent"]),
            row["body"].encode(),
            row["content_type"],
            dict([row["header"].split(": ")]) if row["header"] else {},
        )
        for row in read_table("fault_answers.csv")
    }


def change_json(body: bytes, duplicate: Fault | None, drifts: Sequence[Fault], request: str) -> bytes:
    """The body with its records changed; a body that is not JSON or holds no records is returned unchanged."""
    if duplicate is None and not drifts:
        return body
    try:
        value = json.loads(body)
    except ValueError:
        return body
    rows = _records(value)
    for drift in drifts:
        _drift(rows if rows else [value] if isinstance(value, dict) else [], drift, request)
    if duplicate is not None and rows:
        rows.append(rows[key_of("duplicate", request) % len(rows)])
    return json.dumps(value, ensure_ascii=False).encode()


def _records(value: Any) -> list[Any]:
    """The list of records in an answer, itself and not a copy; an empty list where it has none."""
    if isinstance(value, list):
        return value
    for name in _LISTS:
        if isinstance(value, dict) and isinstance(value.get(name), list | dict):
            return _records(value[name])
    return []


def _drift(rows: list[Any], rule: Fault, request: str) -> None:
    records = [row for row in rows if isinstance(row, dict)]
    names = sorted({name for row in records for name in row})
    if not names:
        return
    name = rule.field or names[int(fraction("drifting field", request) * len(names))]
    how = rule.how or DRIFTS[int(fraction("drift", request) * len(DRIFTS))]
    for row in records:
        if name not in row:
            continue
        value = row.pop(name)
        if how == "rename":
            row[_renamed(name)] = value
        elif how == "retype":
            row[name] = _retyped(value)


def _renamed(name: str) -> str:
    """The other usual spelling: camel case for snake case and the other way round, else with a version."""
    head, *tail = name.split("_")
    if tail and all(tail):
        return head + "".join(part.capitalize() for part in tail)
    snake = "".join(f"_{ch.lower()}" if ch.isupper() else ch for ch in name)
    return snake if snake != name else f"{name}_v2"


def _retyped(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        # An id as a number is what real services did to their clients.
        return int(value) if value.isdigit() else {"value": value}
    return [value] if isinstance(value, dict) else {"items": value} if isinstance(value, list) else ""
