"""Where the outside services are, and how patiently they are asked.

The defaults are the offline world on loopback. Production changes URLs and names the environment variables that hold
the keys; a key itself never stands in configuration. The one exception are the offline world's own keys, which are
public, and are refused for any address that is not loopback.
"""

import ipaddress
import re
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from schemas.settings.base import Settings

OFFLINE_URL = "http://127.0.0.1:8760"
# Public by design: they open only the offline world. The shapes are those the real services demand.
OFFLINE_MAPILLARY_TOKEN = "MLY|1000000000000001|0ff11e0ff11e0ff11e0ff11e0ff11e00"
OFFLINE_CHAT_KEY = "sk-offline-world"
OFFLINE_SEARCH_KEY = "tvly-offline-world"

_OFFLINE_TILES = "/mapillary-tiles/maps/vtp/mly1_public/2"
_OFFLINE_FILES = "/blob/{account}/{container}/"

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_loopback(url: str) -> bool:
    """True if the URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """True if the URL's host cannot be on the open net: loopback, a private address or a cluster-internal name."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".svc"))


class Endpoint(Settings):
    """One outside service."""

    # Somebody may paste a key into a field of ours by mistake; the complaint must not repeat it.
    model_config = ConfigDict(hide_input_in_errors=True)

    # Fields a subclass fills differently for an address that is not the offline world, unless they are given.
    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None}

    base_url: str = Field(description="address of the service, without query")
    key_env: str | None = Field(None, description="environment variable that holds the key; null: no key is sent")
    public_key: str | None = Field(None, description="a key that is no secret; only for a loopback base_url")
    connect_timeout_s: float = Field(10, gt=0, description="seconds to wait for a connection")
    timeout_s: float = Field(60, gt=0, description="seconds to wait for the next bytes of an answer")
    total_timeout_s: float = Field(180, gt=0, description="seconds for one whole answer")
    max_attempts: int = Field(5, ge=1, le=20, description="times one request is tried before it counts as failed")
    backoff_s: float = Field(0.5, ge=0, description="first retry waits up to this, each later one up to twice as long")
    max_wait_s: float = Field(60, ge=0, description="longest wait before a retry; a longer Retry-After gives up")
    requests_per_minute: float | None = Field(None, gt=0, description="ceiling in one process; null: none")
    max_body_mb: float = Field(64, gt=0, description="largest answer accepted")
    user_agent: str = Field("geofix/0.1", min_length=1, description="how we name ourselves")

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address")
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


class MapillaryEndpoint(Endpoint):
    """The Graph API, and the host of its vector tiles."""

    elsewhere: ClassVar[dict[str, Any]] = {
        "public_key": None,
        "tiles_url": "https://tiles.mapillary.com/maps/vtp/mly1_public/2",
    }

    base_url: str = f"{OFFLINE_URL}/mapillary"
    tiles_url: str = Field(
        f"{OFFLINE_URL}{_OFFLINE_TILES}", description="address of the vector tiles, before /zoom/x/y; gets the token"
    )
    key_env: str | None = "MAPILLARY_TOKEN"
    public_key: str | None = OFFLINE_MAPILLARY_TOKEN

    @field_validator("tiles_url")
    @classmethod
    def _plain_tiles_address(cls, value: str) -> str:
        return cls._plain_address(value)

    @model_validator(mode="before")
    @classmethod
    def _tiles_move_along(cls, data: Any) -> Any:
        # The offline world moves as a whole: at another port its tiles are there too.
        base = data.get("base_url") if isinstance(data, dict) else None
        if not isinstance(base, str) or "tiles_url" in data or not is_loopback(base):
            return data
        parts = urlsplit(base)
        return {**data, "tiles_url": f"{parts.scheme}://{parts.netloc}{_OFFLINE_TILES}"}

    @model_validator(mode="after")
    def _token_stays_private(self) -> "MapillaryEndpoint":
        if self.key_env and self.tiles_url.startswith("http://") and not is_private(self.tiles_url):
            raise ValueError("tiles_url must be https:// outside a private network: the token would be readable")
        if self.public_key is None and is_loopback(self.tiles_url) and not is_loopback(self.base_url):
            raise ValueError("tiles_url is on loopback and base_url is not: a real token would go to the offline world")
        return self


class StacEndpoint(Endpoint):
    """A STAC API, the service that signs the addresses of its files, and where the files that need it lie."""

    elsewhere: ClassVar[dict[str, Any]] = {
        "public_key": None,
        "sas_url": None,
        "asset_url": "https://{account}.blob.core.windows.net/{container}/",
    }

    base_url: str = f"{OFFLINE_URL}/stac/api/stac/v1"
    sas_url: str | None = Field(
        f"{OFFLINE_URL}/sas/api/sas/v1", description="signing service, before /token/…; null: files are read unsigned"
    )
    asset_url: str = Field(
        f"{OFFLINE_URL}{_OFFLINE_FILES}", description="how files' addresses begin that are signed; gets the signature"
    )
    asset_requests_per_minute: float | None = Field(None, gt=0, description="ceiling for files; null: none")

    @field_validator("sas_url")
    @classmethod
    def _plain_signing_address(cls, value: str | None) -> str | None:
        return None if value is None else cls._plain_address(value)

    @field_validator("asset_url")
    @classmethod
    def _pattern(cls, value: str) -> str:
        if not value.endswith("/") or any(value.count(part) != 1 for part in ("{account}", "{container}")):
            raise ValueError("must hold {account} and {container} once each and end with a slash")
        cls._plain_address(value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _files_move_along(cls, data: Any) -> Any:
        base = data.get("base_url") if isinstance(data, dict) else None
        if not isinstance(base, str) or not is_loopback(base):
            return data
        parts = urlsplit(base)
        here = f"{parts.scheme}://{parts.netloc}"
        return {"sas_url": f"{here}/sas/api/sas/v1", "asset_url": f"{here}{_OFFLINE_FILES}", **data}


class GeocoderEndpoint(Endpoint):
    """Nominatim. The public instance allows one request a second, so that is the default anywhere but on loopback."""

    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None, "requests_per_minute": 60}

    base_url: str = f"{OFFLINE_URL}/nominatim"


class SearchEndpoint(Endpoint):
    base_url: str = f"{OFFLINE_URL}/tavily"
    key_env: str | None = "TAVILY_API_KEY"
    public_key: str | None = OFFLINE_SEARCH_KEY


class Price(Settings):
    """What a model costs, in US dollars for a million tokens."""

    prompt: float = Field(0, ge=0)
    completion: float = Field(0, ge=0)


class ChatEndpoint(Endpoint):
    base_url: str = f"{OFFLINE_URL}/openai/v1"
    key_env: str | None = "OPENAI_API_KEY"
    public_key: str | None = OFFLINE_CHAT_KEY
    timeout_s: float = Field(180, gt=0)
    total_timeout_s: float = Field(300, gt=0)
    prices: dict[str, Price] = Field(default_factory=dict, description="model name -> price; absent: free")


class TrainedEndpoint(ChatEndpoint):
    """A server of our own checkpoint (vLLM, `transformers serve`): its address has no default and it wants no key."""

    base_url: str
    key_env: str | None = None
    public_key: str | None = None


class ServicesSettings(Settings):
    """Every service the pipeline reaches."""

    mapillary: MapillaryEndpoint = MapillaryEndpoint()
    stac: StacEndpoint = StacEndpoint()
    geocoder: GeocoderEndpoint = GeocoderEndpoint()
    search: SearchEndpoint = SearchEndpoint()
    chat: ChatEndpoint = ChatEndpoint()
    trained: TrainedEndpoint | None = Field(None, description="chat server of a trained checkpoint, where one runs")
