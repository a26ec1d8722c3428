"""Endpoints and keys: what the configuration accepts, and where a key may go."""

import pickle

import pytest
from pydantic import ValidationError

from schemas.settings.services import (
    ChatEndpoint,
    Endpoint,
    GeocoderEndpoint,
    MapillaryEndpoint,
    ServicesSettings,
    is_loopback,
)
from tasks.services import MissingKeys, connect

PRODUCTION = ServicesSettings.model_validate(
    {
        "mapillary": {"base_url": "https://graph.mapillary.com"},
        "geocoder": {"base_url": "https://nominatim.openstreetmap.org"},
        "search": {"base_url": "https://api.tavily.com"},
        "chat": {"base_url": "https://api.openai.com/v1"},
        "trained": {"base_url": "http://127.0.0.1:8000/v1"},
    }
)
KEYS = {"MAPILLARY_TOKEN": "MLY|1|s3cret-a", "TAVILY_API_KEY": "s3cret-b", "OPENAI_API_KEY": "s3cret-c"}


def test_the_default_is_the_offline_world_and_needs_no_environment():
    connections = connect(ServicesSettings(), {})
    assert all(is_loopback(c.endpoint.base_url) for c in (connections.street_view["mapillary"], connections.chat))
    assert connections.chat.key is not None and connections.geocoder.key is None and connections.trained is None


def test_all_missing_keys_are_named_at_once():
    with pytest.raises(MissingKeys) as caught:
        connect(PRODUCTION, {"TAVILY_API_KEY": "  "})
    for words in ("MAPILLARY_TOKEN", "services.mapillary.key_env", "TAVILY_API_KEY", "OPENAI_API_KEY"):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_connections_travel_and_show_nothing():
    connections = connect(PRODUCTION, KEYS)
    again = pickle.loads(pickle.dumps(connections))
    assert again == connections and again.chat.key.get_secret_value() == "s3cret-c"
    assert "s3cret" not in repr(connections) + str(connections)
    assert connections.trained is not None and connections.trained.key is None


def test_a_key_that_cannot_be_a_header_is_not_printed():
    with pytest.raises(MissingKeys) as caught:
        connect(PRODUCTION, {**KEYS, "OPENAI_API_KEY": "s3cret\nkey"})
    assert "OPENAI_API_KEY" in str(caught.value) and "s3cret" not in str(caught.value)


def test_a_real_key_in_the_environment_does_not_go_to_the_offline_world():
    assert "s3cret" not in connect(ServicesSettings(), KEYS).chat.key.get_secret_value()


def test_offline_keys_stay_at_home():
    assert MapillaryEndpoint(base_url="https://graph.mapillary.com").public_key is None
    with pytest.raises(ValidationError, match="loopback"):
        ChatEndpoint(base_url="https://api.openai.com/v1", public_key="sk-offline-world")


def test_the_public_geocoder_is_asked_once_a_second():
    assert GeocoderEndpoint(base_url="https://nominatim.openstreetmap.org").requests_per_minute == 60
    assert GeocoderEndpoint().requests_per_minute is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_url": "ftp://x"}, "http://"),
        ({"base_url": "https://user:pw@x.org"}, "key_env"),
        ({"base_url": "https://x.org?token=1"}, "key_env"),
        ({"base_url": "http://x.org", "key_env": "KEY"}, "https://"),
        ({"base_url": "https://x.org", "key_env": "sk-real key"}, "NAME of an environment variable"),
        ({"base_url": "https://x.org", "max_attempts": 0}, "max_attempts"),
        ({"base_url": "https://x.org", "timeout": 3}, "timeout"),
    ],
)
def test_wrong_settings_are_explained(settings, words):
    with pytest.raises(ValidationError, match=words):
        Endpoint(**settings)


@pytest.mark.parametrize("host", ["vllm:8000", "10.1.2.3:8000", "127.0.0.1:8000", "llm.ray.svc", "[::1]:80"])
def test_plain_http_is_for_private_networks(host):
    assert Endpoint(base_url=f"http://{host}/v1/", key_env="KEY").base_url == f"http://{host}/v1"


@pytest.mark.parametrize(
    "contact", ["me", "https://x y", "https://x\r\nEvil: 1", "https://x)", "https://ä.example", ""]
)
def test_a_contact_is_an_address_that_fits_a_header(contact):
    with pytest.raises(ValidationError, match="contact"):
        ServicesSettings(contact=contact)


def test_the_contact_goes_to_every_service():
    connections = connect(ServicesSettings(contact="mailto:us@example.org"), {})
    assert {c.contact for c in (connections.street_view["mapillary"], connections.chat, connections.geocoder)} == {
        "mailto:us@example.org"
    }


def test_away_from_loopback_mapillary_has_budgets_below_the_services_own():
    real = MapillaryEndpoint(base_url="https://graph.mapillary.com")
    assert real.allowances("search")[-1].per_minute < 10_000 and real.allowances("tiles")[0].per_day < 50_000
    assert real.allowances("tiles")[-1].per_minute == real.allowances("")[-1].per_minute < 60_000
    assert real.allowances("picture") == ()
    assert all(one.is_open for one in MapillaryEndpoint().allowances("search"))
    together = MapillaryEndpoint(requests_per_minute=100, requests_per_day=7)
    assert together.allowances("search") == together.allowances("tiles") == together.allowances("")
