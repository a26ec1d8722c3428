"""One outside service: its address, the name of its key's variable, and the budgets of requests."""

import ipaddress
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from schemas.settings.base import Settings


def _own_name() -> str:
    try:
        return f"geofix/{version('geofix')}"
    except PackageNotFoundError:
        return "geofix"


class ClientSettings(Settings):
    """As `services.client` for all services; each service may override single fields under its own name."""

    connect_timeout_s: float = Field(10, gt=0, description="seconds to wait for a connection")
    timeout_s: float = Field(60, gt=0, description="seconds to wait for the next bytes of an answer")
    total_timeout_s: float = Field(180, gt=0, description="seconds for one whole answer")
    max_attempts: int = Field(5, ge=1, le=20, description="times one request is tried before it counts as failed")
    backoff_s: float = Field(0.5, ge=0, description="first retry waits up to this, each later one up to twice as long")
    max_wait_s: float = Field(
        60,
        ge=0,
        description="longest wait before a retry; a longer Retry-After gives up (of a limit: limit_patience_s)",
    )
    limit_pause_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="how long a service rests that says its limit is reached and names no time; doubles",
    )
    limit_patience_s: float = Field(
        900, ge=0, description="how long requests wait for such a limit's end before they are left to a later run"
    )
    max_concurrency: int = Field(
        64, ge=1, le=1024, description="requests at once of one worker; how many really are follows the service's speed"
    )
    outage_after: int = Field(10, ge=1, description="outages in a row after which only single requests are sent")
    outage_pause_s: float = Field(2, gt=0, description="time to the first of them; doubles, up to max_wait_s")
    outage_patience_s: float = Field(
        60, ge=0, description="how long requests wait for the service's return, all together; then they fail unsent"
    )
    max_body_mb: float = Field(64, gt=0, description="largest answer accepted")
    user_agent: str = Field(default_factory=_own_name, min_length=1, description="how we name ourselves")


@dataclass(frozen=True)
class Allowance:
    """A budget of requests, and the settings it comes from, for the message that it is used up."""

    name: str = ""  # tells budgets of one service apart
    per_minute: float | None = None
    per_day: int | None = None
    day_setting: str = "requests_per_day"

    @property
    def is_open(self) -> bool:
        """Whether there is nothing to keep to."""
        return self.per_minute is None and self.per_day is None


_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_loopback(url: str) -> bool:
    """True if the URL's host is this machine."""
    return is_loopback_host(_host(url))


def is_loopback_host(host: str) -> bool:
    """True if a name or an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """True if the URL's host cannot be on the open net: loopback, a private address or a cluster-internal name."""
    host = _host(url)
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".svc", ".home.arpa"))


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")  # the dot of a name that is written in full
    except ValueError:
        return ""


class Endpoint(ClientSettings):
    """One outside service; the client's fields override those of `services.client`."""

    # A key may be pasted into a field by mistake; the error must not repeat it.
    model_config = ConfigDict(hide_input_in_errors=True)

    # Fields a subclass fills differently for an address that is not the offline world, unless they are given.
    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None}

    base_url: str = Field(description="address of the service, without query")
    key_env: str | None = Field(None, description="environment variable that holds the key; null: no key is sent")
    public_key: str | None = Field(None, description="a key that is not secret; only for a loopback base_url")
    requests_per_minute: float | None = Field(
        None, gt=0, description="never more in any minute, by all workers and runs on a lake together; null: no limit"
    )
    requests_per_day: int | None = Field(
        None,
        gt=0,
        description="never more in a day (UTC), likewise, of every kind; the rest fails and is done by a later run",
    )

    def allowances(self, kind: str) -> tuple[Allowance, ...]:
        """The budgets a kind of request is counted in, in the order they are taken; one with a pace is the last.

        What waits for its moment in one pace would miss that of another, so no kind has two.
        """
        return (Allowance("", self.requests_per_minute, self.requests_per_day),)

    @field_validator("base_url", "tiles_url", "sas_url", "pictures_url", check_fields=False)  # those of subclasses, too
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.isprintable() or " " in value:  # an end of line would begin another header
            raise ValueError("must be an address without spaces, line ends and other unprintable characters")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address")
        try:
            parts.port  # noqa: B018 - raises for a port out of range
        except ValueError:
            raise ValueError("must have a port between 1 and 65535") from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("must not hold a user, password, query or fragment: keys come from key_env")
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _names_a_variable(cls, value: str | None) -> str | None:
        # A key pasted here by mistake must not be echoed: say what is wrong, not what was given.
        if value is not None and not _ENVIRONMENT_NAME.fullmatch(value):
            raise ValueError("must be the NAME of an environment variable, not a key")
        return value

    @model_validator(mode="before")
    @classmethod
    def _leave_offline_defaults_at_home(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("base_url"), str) and not is_loopback(data["base_url"]):
            return {**cls.elsewhere, **data}
        return data

    @model_validator(mode="after")
    def _keys_stay_private(self) -> "Endpoint":
        if self.key_env and self.base_url.startswith("http://") and not is_private(self.base_url):
            raise ValueError("base_url must be https:// outside a private network: a key would be readable on the way")
        if self.public_key is not None and not is_loopback(self.base_url):
            raise ValueError("public_key is only for a loopback base_url; name the key's variable in key_env")
        return self
