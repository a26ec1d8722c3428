"""Against a real Panoramax: what the client reads, and what the stand-in claims."""

import io
from typing import Any

import httpx
import pytest
from PIL import Image

from infra.offline.services.panoramax import picture_id
from schemas.settings.collect import CollectSettings
from schemas.settings.services import ServicesSettings
from tasks.collect.boxes import boxes_around
from tasks.collect.providers.panoramax.streets import LAYER
from tasks.collect.providers.provider import StreetViewProvider, open_providers
from tasks.collect.search import Search
from tasks.collect.tile_cache import TileCache
from tasks.collect.tiles import tiles_of
from tasks.services import ServiceError, connect

pytestmark = pytest.mark.real
SETTINGS = CollectSettings(providers=("panoramax",), panorama_min_pixels=1)


def provider_of(instance: Any, settings: CollectSettings = SETTINGS) -> StreetViewProvider:
    (provider,) = open_providers(connect(ServicesSettings(panoramax=instance.endpoint), {}), settings)
    return provider


@pytest.fixture(scope="module")
def street(instance: Any) -> list[str]:
    """Pictures of both kinds in one street, uploaded."""
    index = next(k for k in range(300) if len({one.is_pano for one in instance.world.images(k)}) == 2)
    names: list[str] = instance.upload(list(instance.world.images(index)), focal_mm=26)
    return names


@pytest.mark.parametrize(
    ("find", "crowded_rows"), [("boxes", 500), ("auto", 500), ("auto", 2), ("tiles", 500), ("tiles", 2)]
)
async def test_every_picture_is_found_in_every_way(
    instance: Any, street: list[str], find: Any, crowded_rows: int
) -> None:
    settings = SETTINGS.model_copy(update={"find": find, "crowded_rows": crowded_rows})
    provider = provider_of(instance, settings)
    here = instance.records[street[0]]
    search = Search(provider, TileCache(provider, 1000), settings, here.lat, here.lon, 300.0)
    kinds = {}
    for kind in ("panorama", "photo"):
        while (candidate := await search.next(kind)) is not None:
            kinds[candidate.source_id] = kind
    assert kinds == {name: "panorama" if instance.records[name].is_pano else "photo" for name in street}


async def test_records_say_what_the_camera_said(instance: Any, street: list[str]) -> None:
    found = await provider_of(instance).by_id(street)
    assert set(found) == set(street)
    for name, record in found.items():
        true = instance.records[name]
        assert record.point == pytest.approx((true.lat, true.lon), abs=1e-6)
        assert record.captured_at is not None and record.captured_at.timestamp() * 1000 == true.captured_at_ms
        assert record.compass_angle == pytest.approx(true.compass_deg, abs=1.01)
        assert record.pixels == true.width * true.height and record.licence == "CC BY-SA 4.0"
        assert record.sequence_id == instance.sequences[name] and record.creator == "Default account"
        assert true.is_pano or 60 < record.more["field_of_view"] < 80


async def test_a_part_of_a_sphere_is_no_panorama_and_a_camera_without_focal_length_takes_photos(
    instance: Any, tag: Any, move: Any
) -> None:
    sphere = next(one for k in range(50) for one in instance.world.images(k) if one.is_pano)
    flat = next(one for k in range(50) for one in instance.world.images(k) if not one.is_pano)
    whole = {"FullPanoWidthPixels": 2048, "FullPanoHeightPixels": 1024}
    crop = {"CroppedAreaImageWidthPixels": 1200, "CroppedAreaImageHeightPixels": 400}
    out = io.BytesIO()
    Image.open(io.BytesIO(instance.painted(sphere))).crop((300, 300, 1500, 700)).save(out, "JPEG")
    part = tag(
        out.getvalue(), sphere, crop={**whole, **crop, "CroppedAreaLeftPixels": 300, "CroppedAreaTopPixels": 300}
    )
    unknown = move(flat, sphere.lat + 0.001, sphere.lon)
    names = instance.upload_files([(sphere, part), (unknown, tag(instance.painted(flat), unknown))])
    found = await provider_of(instance).by_id(names)
    assert [found[name].kind for name in names] == [None, "photo"]
    assert found[names[0]].more["field_of_view"] == 360 and "field_of_view" not in found[names[1]].more


async def test_what_is_deleted_or_hidden_is_gone(instance: Any) -> None:
    index = next(k for k in range(300, 400) if len(instance.world.images(k)) >= 3)
    kept, deleted, hidden = instance.upload(list(instance.world.images(index))[:3])
    provider = provider_of(instance)
    addresses = await provider.addresses([kept, deleted, hidden])
    instance.delete(deleted)
    instance.hide(hidden)
    assert set(await provider.addresses([kept, deleted, hidden])) == {kept}
    for name in (deleted, hidden):
        for asked in (provider.address(name), provider.fetch(addresses[name])):
            with pytest.raises(ServiceError) as caught:
                await asked
            assert caught.value.kind == "not_found"
    fetched = await provider.fetch(addresses[kept])
    assert fetched is not None and fetched.etag == ""
    assert fetched.data == instance.server.file_of(kept).read_bytes()


def shape(answer: httpx.Response) -> tuple[Any, ...]:
    """What of an answer a client depends on."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    marks = sorted({"etag", "last-modified", "content-length"} & answer.headers.keys()) if kind == "image/jpeg" else []
    said = answer.json().get("message", "features") if "json" in kind else ""
    return answer.status_code, kind, marks, said


def test_the_stand_in_answers_alike(instance: Any, street: list[str], offline_url: str) -> None:
    """The same requests, with ids of each: status, type, marks of a file and words of a refusal."""
    true = [instance.records[name] for name in street]
    here = boxes_around(true[0].lat, true[0].lon, 300.0, 1.0)[0]
    box = f"{here.west},{here.south},{here.east},{here.north}"
    tile = tiles_of(here, LAYER.zoom)[0]
    nobody = "00000000-0000-4000-8000-000000000000"
    with httpx.Client(base_url=f"{offline_url}/panoramax/api", timeout=60) as stand_in:
        for http, names in ((instance.http, street), (stand_in, [picture_id(one) for one in true])):
            answers = [
                http.get("/search", params={"bbox": box, "limit": 100}),
                http.get("/search", params={"ids": ",".join(names), "limit": 100}),
                http.get("/search", params={"ids": nobody}),
                http.get("/search", params={"ids": "nonsense"}),
                http.get("/search", params={"bbox": "1,2,3"}),
                http.get("/search", params={"bbox": "179.9,0,180.1,1"}),
                http.get("/search", params={"bbox": box, "limit": 0}),
                http.get("/search", params={"bbox": box, "limit": 10_001}),
                http.get(f"/pictures/{names[0]}/hd.jpg"),
                http.get(f"/pictures/{names[0]}/hd.jpg", headers={"range": "bytes=0-99"}),
                http.get(f"/pictures/{nobody}/hd.jpg"),
                http.get("/pictures/nonsense/hd.jpg"),
                http.get(f"/collections/{nobody}/items/{nobody}"),
                http.get(f"/map/{tile.z}/{tile.x}/{tile.y}.mvt"),
                http.get("/map/15/0/0.mvt"),
                http.get("/map/16/0/0.mvt"),
                http.get("/map/15/99999/0.mvt"),
            ]
            counts = [
                len(http.get("/search", params={"ids": ",".join(names[:3])}).json()["features"]),
                len(http.post("/search", json={"ids": names[:3]}).json()["features"]),
            ]
            if http is instance.http:
                shapes, sizes = [shape(one) for one in answers], counts
            else:
                assert [shape(one) for one in answers] == shapes and counts == sizes == [3, 1]
