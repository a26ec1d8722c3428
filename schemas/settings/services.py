"""Where the outside services are, and how their clients behave.

The defaults are the offline world on loopback; Panoramax's is its public catalogue, which wants no key. Production
changes URLs and names the environment variables that hold the keys; a key itself never stands in configuration. The one
exception are the offline world's own keys, which are public, and are refused for any address that is not loopback.
"""

from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from schemas.settings.base import Settings
from schemas.settings.endpoint import Allowance, ClientSettings, Endpoint, is_loopback, is_private

__all__ = [
    "OFFLINE_URL",
    "ChatEndpoint",
    "ClientSettings",
    "Endpoint",
    "GeocoderEndpoint",
    "MapillaryEndpoint",
    "MapsEndpoint",
    "PanoramaxEndpoint",
    "Price",
    "SearchEndpoint",
    "ServicesSettings",
    "StacEndpoint",
    "ToolGeocoderEndpoint",
    "ToolsSettings",
    "TrainedEndpoint",
    "is_loopback",
    "is_private",
]

OFFLINE_URL = "http://127.0.0.1:8760"
# Public by design: they open only the offline world. The shapes are those the real services demand.
OFFLINE_MAPILLARY_TOKEN = "MLY|1000000000000001|0ff11e0ff11e0ff11e0ff11e0ff11e00"
OFFLINE_CHAT_KEY = "sk-offline-world"
OFFLINE_SEARCH_KEY = "tvly-offline-world"
OFFLINE_MAPS_KEY = "offline-world-maps"
OFFLINE_PLACES_KEY = "AIza-offline-world"
OFFLINE_VISION_KEY = "AIza-offline-vision"

LAKE_PICTURES_URL = "http://127.0.0.1:8762"  # of `geofix serve pictures`

_OFFLINE_TILES = "/mapillary-tiles/maps/vtp/mly1_public/2"
_OFFLINE_FILES = "/blob/{account}/{container}/"


class StreetViewEndpoint(Endpoint):
    """A provider of street-level pictures; its field's name in `ServicesSettings` is the provider's."""


class MapillaryEndpoint(StreetViewEndpoint):
    """The Graph API, and the host of its vector tiles."""

    elsewhere: ClassVar[dict[str, Any]] = {
        "public_key": None,
        "tiles_url": "https://tiles.mapillary.com/maps/vtp/mly1_public/2",
        # nine tenths of what the service allows: it counts when a request arrives, and delays differ
        "requests_per_minute": 54_000,
        "search_per_minute": 9_000,
        "tiles_per_day": 45_000,
    }

    base_url: str = f"{OFFLINE_URL}/mapillary"
    tiles_url: str = Field(
        f"{OFFLINE_URL}{_OFFLINE_TILES}", description="address of the vector tiles, before /zoom/x/y; gets the token"
    )
    key_env: str | None = "MAPILLARY_TOKEN"
    public_key: str | None = OFFLINE_MAPILLARY_TOKEN
    search_per_minute: float | None = Field(
        None, gt=0, description="pace of searches by box, instead of requests_per_minute; null: one pace for all"
    )
    tiles_per_day: int | None = Field(
        None, gt=0, description="vector tiles a day (UTC), besides requests_per_day; null: no limit of their own"
    )

    def allowances(self, kind: str) -> tuple[Allowance, ...]:
        if kind == "picture":
            return ()  # another host, which counts nothing
        if kind == "search" and self.search_per_minute is not None:
            return Allowance(per_day=self.requests_per_day), Allowance(kind, self.search_per_minute)
        ours = super().allowances(kind)
        if kind == "tiles" and self.tiles_per_day is not None:
            return Allowance(kind, None, self.tiles_per_day, "tiles_per_day"), *ours
        return ours

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


PANORAMAX = "https://api.panoramax.xyz/api"  # the catalogue of all instances


class PanoramaxEndpoint(StreetViewEndpoint):
    """The API of the federated catalogue, or of one instance: open to all, without a key.

    It names no limits. The pace elsewhere than on loopback is ours, and counts pictures too: they come from the hosts
    of those who took them.
    """

    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None, "requests_per_minute": 120}

    base_url: str = PANORAMAX

    @model_validator(mode="before")
    @classmethod
    def _is_public_unless_named(cls, data: Any) -> Any:
        return {"base_url": PANORAMAX, **data} if isinstance(data, dict) else data


_PLANETARY_COMPUTER = "https://planetarycomputer.microsoft.com/api"
# Archives of Sentinel-2 that may stand as services.stac.base_url by their name.
ARCHIVES: dict[str, dict[str, Any]] = {
    "planetary-computer": {
        **{"base_url": f"{_PLANETARY_COMPUTER}/stac/v1", "sas_url": f"{_PLANETARY_COMPUTER}/sas/v1"},
        "asset_url": "https://{account}.blob.core.windows.net/{container}/",
    },
    "earth-search": {
        **{"base_url": "https://earth-search.aws.element84.com/v1", "sas_url": None},
        "asset_url": "https://{account}.blob.core.windows.net/{container}/",
    },
}


class StacEndpoint(Endpoint):
    """A STAC API, the service that signs the addresses of its files, and where the files that need it lie."""

    elsewhere: ClassVar[dict[str, Any]] = {
        "public_key": None,
        "sas_url": None,
        "asset_url": "https://{account}.blob.core.windows.net/{container}/",
    }

    base_url: str = Field(
        f"{OFFLINE_URL}/stac/api/stac/v1",
        description=f"address of the STAC API, or the name of an archive: {', '.join(ARCHIVES)}",
    )
    sas_url: str | None = Field(
        f"{OFFLINE_URL}/sas/api/sas/v1", description="signing service, before /token/…; null: files are read unsigned"
    )
    asset_url: str = Field(
        f"{OFFLINE_URL}{_OFFLINE_FILES}", description="how files' addresses begin that are signed; gets the signature"
    )
    files_per_minute: float | None = Field(None, gt=0, description="reads of files, counted by themselves; null: never")

    def allowances(self, kind: str) -> tuple[Allowance, ...]:
        if kind == "file":  # another host
            return (Allowance(kind, self.files_per_minute),)
        return super().allowances(kind)

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
        if base in ARCHIVES:
            return {**data, **ARCHIVES[base]}
        if not isinstance(base, str) or not is_loopback(base):
            return data
        parts = urlsplit(base)
        here = f"{parts.scheme}://{parts.netloc}"
        return {"sas_url": f"{here}/sas/api/sas/v1", "asset_url": f"{here}{_OFFLINE_FILES}", **data}


GeocoderProtocol = Literal["nominatim", "photon", "google", "opencage", "gazetteer"]


class GeocoderEndpoint(Endpoint):
    """A geocoder. Nominatim's public instance allows one request a second: the default anywhere but on loopback."""

    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None, "requests_per_minute": 60}

    base_url: str = f"{OFFLINE_URL}/nominatim"
    protocol: GeocoderProtocol = Field(
        "nominatim", description="what the service speaks; gazetteer: no service, the packaged table of places"
    )


class ToolGeocoderEndpoint(Endpoint):
    """A geocoder for one use, where it is another than `services.geocoder`."""

    base_url: str
    protocol: GeocoderProtocol = Field("google", description="what the service speaks")


class SearchEndpoint(Endpoint):
    """Web search, by default Tavily's."""

    protocol: Literal["tavily", "you"] = Field("tavily", description="what the service speaks")
    base_url: str = f"{OFFLINE_URL}/tavily"
    key_env: str | None = "TAVILY_API_KEY"
    public_key: str | None = OFFLINE_SEARCH_KEY


class ImageSearchEndpoint(Endpoint):
    """Search by a picture: Google's Cloud Vision, a server that answers as it does, or the lake's own pictures."""

    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None}

    protocol: Literal["google", "lake"] = Field(
        "google", description="lake: `geofix serve pictures`, which is also told whose crop it is sent"
    )
    base_url: str = f"{OFFLINE_URL}/vision"
    key_env: str | None = "GOOGLE_VISION_KEY"
    public_key: str | None = OFFLINE_VISION_KEY

    @model_validator(mode="before")
    @classmethod
    def _is_ours(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("protocol") == "lake":
            return {"base_url": LAKE_PICTURES_URL, "key_env": None, "public_key": None, **data}
        return data


class MapsEndpoint(Endpoint):
    """Points of interest and pictures of the ground, by default AMap's."""

    elsewhere: ClassVar[dict[str, Any]] = {"public_key": None}

    protocol: Literal["amap", "google"] = Field("amap", description="what the service speaks")
    base_url: str = f"{OFFLINE_URL}/maps"
    pictures_url: str | None = Field(
        None, description="host of Google's static maps; gets the key; null: that of base_url"
    )
    key_env: str | None = "AMAP_KEY"
    public_key: str | None = OFFLINE_MAPS_KEY

    @model_validator(mode="after")
    def _key_of_pictures_stays_private(self) -> "MapsEndpoint":
        url = self.pictures_url or ""
        if self.key_env and url.startswith("http://") and not is_private(url):
            raise ValueError("pictures_url must be https:// outside a private network: a key would be readable")
        return self


class WorldMapsEndpoint(MapsEndpoint):
    """A second map service beside `maps`, by default Google's: it serves what lies outside China."""

    protocol: Literal["amap", "google"] = Field("google", description="what the service speaks")
    base_url: str = f"{OFFLINE_URL}/places"
    key_env: str | None = "GOOGLE_MAPS_KEY"
    public_key: str | None = OFFLINE_PLACES_KEY


class Price(Settings):
    """What a model costs, in US dollars for a million tokens."""

    prompt: float = Field(ge=0, description="for a million tokens of the question")
    completion: float = Field(ge=0, description="for a million tokens of the answer, reasoning included")
    as_of: str | None = Field(None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="day on which the price was read")
    source: str | None = Field(None, description="where it was read")

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars for these tokens."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1_000_000


OFFLINE_PRICE = Price(prompt=0, completion=0, source="the offline world is free")


class ChatEndpoint(Endpoint):
    base_url: str = f"{OFFLINE_URL}/openai/v1"
    key_env: str | None = "OPENAI_API_KEY"
    public_key: str | None = OFFLINE_CHAT_KEY
    timeout_s: float = Field(180, gt=0)
    total_timeout_s: float = Field(300, gt=0)
    max_concurrency: int = Field(256, ge=1, le=1024)
    tokens_per_minute: float | None = Field(
        None,
        gt=0,
        description="tokens of questions and expected answers a minute, by all workers and runs on a lake together",
    )
    prices: dict[str, Price] = Field(default_factory=dict, description="model name -> price; absent: unknown")

    def price_of(self, model: str | None) -> Price | None:
        """What a model costs here; None: that is not known."""
        if model in self.prices:
            return self.prices[model]
        return OFFLINE_PRICE if self.public_key == OFFLINE_CHAT_KEY else None


class TrainedEndpoint(ChatEndpoint):
    """A server of our own checkpoint (vLLM, `transformers serve`): its address has no default and it wants no key."""

    base_url: str
    key_env: str | None = None
    public_key: str | None = None
    identity_url: str | None = Field(
        None,
        description="address that stands for it in the identity of a request, where its own changes with the cluster",
    )
    actors: tuple[str, ...] = Field((), description="of a pool that is queried through Ray: its actors' names")


class ToolsSettings(Settings):
    """Where the tools of agents get their answers from."""

    mode: Literal["live", "record", "frozen", "nearest"] = Field(
        "live",
        description="live: services are queried; record: also what GRPO's rollouts ask is kept; frozen: no service is "
        "queried, every answer comes from the recording; nearest: likewise, and a question that was not recorded has "
        "the answer of the nearest one",
    )
    recording: str | None = Field(
        None,
        description="file of recorded answers, written by `geofix export --as frozen-tools`, or the folder of a set "
        "that was published --with-tools; for modes frozen and nearest",
    )
    nearest_iou: float = Field(
        0.7, gt=0, le=1, description="of mode nearest: least intersection over union of two boxes in one picture"
    )
    nearest_words: float = Field(
        0.5, ge=0, le=1, description="of mode nearest: least share of common words of two texts; 0: one common word"
    )

    @property
    def tolerance(self) -> tuple[float, float] | None:
        """Of boxes and of texts, where the nearest recorded question is answered."""
        return (self.nearest_iou, self.nearest_words) if self.mode == "nearest" else None

    @model_validator(mode="after")
    def _is_whole(self) -> "ToolsSettings":
        if (self.mode in ("frozen", "nearest")) != (self.recording is not None):
            raise ValueError(
                "recording: name the file of recorded answers with mode frozen or nearest, and with no other mode"
            )
        return self


class ServicesSettings(Settings):
    """Every service the pipeline reaches."""

    contact: str | None = Field(
        None,
        pattern=r"^(https?://|mailto:)[!-'*-~]+$",
        max_length=200,
        description="https:// or mailto: address sent with every request: where a service's operator can reach you",
    )
    client: ClientSettings = Field(
        ClientSettings(), description="of every service, unless the service sets the field itself"
    )
    mapillary: MapillaryEndpoint = MapillaryEndpoint()
    panoramax: PanoramaxEndpoint = PanoramaxEndpoint()
    street_view: dict[str, StreetViewEndpoint] = Field(
        default_factory=dict, description="street-view providers of your own, by their name in `collect.providers`"
    )
    stac: StacEndpoint = StacEndpoint()
    geocoder: GeocoderEndpoint = GeocoderEndpoint()
    search: SearchEndpoint = SearchEndpoint()
    image_search: ImageSearchEndpoint = ImageSearchEndpoint()
    maps: MapsEndpoint = MapsEndpoint()
    world_maps: WorldMapsEndpoint | None = Field(
        None, description="second map service, for what lies outside China; null: `maps` alone"
    )
    tool_geocoder: ToolGeocoderEndpoint | None = Field(
        None, description="geocoder of the tool maps_geocode; null: the one of `geocoder`"
    )
    answer_geocoder: ToolGeocoderEndpoint | None = Field(
        None,
        description="geocoder of addresses in answers, for rewards and evaluation; null: the packaged table of places, "
        "a few microseconds an address",
    )
    tools: ToolsSettings = ToolsSettings()
    chat: ChatEndpoint = ChatEndpoint()
    trained: TrainedEndpoint | None = Field(None, description="chat server of a trained checkpoint, where one runs")

    def providers(self) -> dict[str, StreetViewEndpoint]:
        """The street-view providers, ours and those of the user, by name."""
        return {
            name: endpoint for name, endpoint in self.endpoints().items() if isinstance(endpoint, StreetViewEndpoint)
        }

    def endpoints(self) -> dict[str, Endpoint]:
        """Every service that has an address, by name."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            **{name: endpoint for name, endpoint in own.items() if isinstance(endpoint, Endpoint)},
            **self.street_view,
        }

    @model_validator(mode="before")
    @classmethod
    def _share_client(cls, data: Any) -> Any:
        """Give every service the fields of `client` that it neither sets nor has a default of its own for."""
        client = data.get("client") if isinstance(data, dict) else None
        if isinstance(client, ClientSettings):
            client = client.model_dump(exclude_unset=True)
        if not isinstance(client, dict) or not _is_valid(client):
            return data  # what is wrong is said of `client` alone
        absent = ("trained", "tool_geocoder", "answer_geocoder", "world_maps")
        shared = dict(data)
        for name, kind in _ENDPOINTS.items():
            shared[name] = _with_client(data.get(name, None if name in absent else {}), kind, client)
        if isinstance(data.get("street_view"), dict):
            theirs = data["street_view"].items()
            shared["street_view"] = {
                name: _with_client(endpoint, StreetViewEndpoint, client) for name, endpoint in theirs
            }
        return {name: value for name, value in shared.items() if value is not None or name in data}


_ENDPOINTS: dict[str, type[Endpoint]] = {
    "mapillary": MapillaryEndpoint,
    "panoramax": PanoramaxEndpoint,
    "stac": StacEndpoint,
    "geocoder": GeocoderEndpoint,
    "search": SearchEndpoint,
    "image_search": ImageSearchEndpoint,
    "maps": MapsEndpoint,
    "world_maps": WorldMapsEndpoint,
    "tool_geocoder": ToolGeocoderEndpoint,
    "answer_geocoder": ToolGeocoderEndpoint,
    "chat": ChatEndpoint,
    "trained": TrainedEndpoint,
}


def _with_client(own: Any, kind: type[Endpoint], client: dict[str, Any]) -> Any:
    """A service's own fields, and those of the client that it leaves to it; what is no service stays as it is."""
    if isinstance(own, kind):
        own = own.model_dump(exclude_unset=True)
    if not isinstance(own, dict):
        return own
    return {**{field: client[field] for field in client if _is_default(kind, field)}, **own}


def _is_valid(client: dict[str, Any]) -> bool:
    try:
        ClientSettings.model_validate(client)
    except ValidationError:
        return False
    return True


def _is_default(kind: type[Endpoint], field: str) -> bool:
    """Whether an endpoint leaves a field to the client: a chat model's longer timeout is its own."""
    return bool(kind.model_fields[field].default == ClientSettings.model_fields[field].default)
