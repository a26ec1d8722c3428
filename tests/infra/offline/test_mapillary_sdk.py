"""The official Mapillary client, unchanged: only the two host names lead to the offline world."""

import io
import json
import logging

import pytest
import requests
from PIL import Image

from infra.offline.services.mapillary import TOKEN
from tests.mapillary_client import official_client

mapillary = official_client()

HOSTS = {
    "https://graph.mapillary.com": "/mapillary",
    "https://tiles.mapillary.com": "/mapillary-tiles",
}


@pytest.fixture
def sdk(served, monkeypatch):
    """The client with its hosts redirected below it, as a hosts file would do."""
    send = requests.adapters.HTTPAdapter.send

    def redirected(adapter, request, **options):
        for host, prefix in HOSTS.items():
            if request.url.startswith(host):
                request.url = served.url + prefix + request.url.removeprefix(host)
                return send(adapter, request, **options)
        if request.url.startswith(served.url):
            return send(adapter, request, **options)
        raise AssertionError(f"the client went astray: {request.url}")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", redirected)
    for name in ("mapillary.utils.client", "mapillary.utils.verify"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    mapillary.set_access_token(TOKEN)
    return mapillary


def box(record, half=0.002):
    return {
        "west": record.lon - half,
        "south": record.lat - half,
        "east": record.lon + half,
        "north": record.lat + half,
    }


def test_a_wrong_token_is_refused_in_the_clients_own_words(sdk):
    from mapillary.models.exceptions import InvalidTokenError

    with pytest.raises(InvalidTokenError):
        sdk.set_access_token("MLY|42|" + "a" * 32)


def test_images_of_a_box(sdk, served):
    record = served.world.images(3)[0]
    found = json.loads(sdk.images_in_bbox(box(record), image_type="all"))
    near = served.world.images_in(*(box(record)[side] for side in ("west", "south", "east", "north")))
    assert {str(row["properties"]["id"]) for row in found["features"]} == {r.image_id for r in near}
    for row in found["features"]:
        lon, lat = row["geometry"]["coordinates"]
        true = served.world.image(str(row["properties"]["id"]))
        assert (lat, lon) == pytest.approx((true.lat, true.lon), abs=1e-5)
        assert row["properties"]["sequence_id"] == true.sequence_id


def test_one_image_and_its_thumb(sdk, served):
    record = next(r for p in range(30) for r in served.world.images(p) if r.condition == "clear")
    image = json.loads(sdk.image_from_key(record.image_id))
    properties = image["features"]["properties"]  # the client itself drops the geometry
    assert properties["id"] == record.image_id
    assert properties["captured_at"] == record.captured_at_ms
    assert properties["creator"]["username"] == record.creator
    url = sdk.image_thumbnail(record.image_id, 256)
    assert Image.open(io.BytesIO(requests.get(url, timeout=30).content)).width == 256


def test_images_close_to_a_point(sdk, served):
    record = served.world.images(3)[0]
    found = sdk.get_image_close_to(latitude=record.lat, longitude=record.lon).to_dict()
    assert record.image_id in {str(row["properties"]["id"]) for row in found["features"]}
