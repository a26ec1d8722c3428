"""The Graph API over a real socket: every row of the recorded tables of fields and errors."""

import io
import re
import time

import pytest
from PIL import Image

from infra.offline.services.mapillary import TOKEN

IMAGE_FIELDS = {
    "id": str,
    "sequence": str,
    "captured_at": int,
    "geometry": dict,
    "computed_geometry": dict,
    "compass_angle": float,
    "computed_compass_angle": float,
    "altitude": float,
    "computed_altitude": float,
    "quality_score": float,
    "camera_type": str,
    "is_pano": bool,
    "creator": dict,
    "make": str,
    "model": str,
    "width": int,
    "height": int,
    "exif_orientation": int,
    "merge_cc": float,
    "thumb_256_url": str,
    "thumb_1024_url": str,
    "thumb_2048_url": str,
    "thumb_original_url": str,
}


def box_around(record, half=0.004):
    return f"{record.lon - half},{record.lat - half},{record.lon + half},{record.lat + half}"


def error_of(response):
    body = response.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"]["fbtrace_id"], str)
    return body["error"]


def test_only_id_unless_asked(served):
    record = served.world.images(0)[0]
    response = served.graph(f"/{record.image_id}")
    assert response.status_code == 200
    assert response.json() == {"id": record.image_id}


def test_every_field_has_its_type_and_absent_ones_are_left_out(served):
    seen, absent = set(), 0
    for place in range(12):
        for record in served.world.images(place):
            body = served.graph(f"/{record.image_id}", fields=",".join(IMAGE_FIELDS)).json()
            assert None not in body.values()
            assert body.keys() <= IMAGE_FIELDS.keys()
            for name, value in body.items():
                assert type(value) is IMAGE_FIELDS[name] or (
                    IMAGE_FIELDS[name] is float and isinstance(value, int | float)
                ), name
            seen |= body.keys()
            absent += len(IMAGE_FIELDS) - len(body)
            assert body["geometry"] == {"type": "Point", "coordinates": [record.lon, record.lat]}
            assert body["creator"].keys() == {"username", "id"}
            assert body["camera_type"] == ("equirectangular" if body["is_pano"] else "perspective")
            assert int(body["id"]) > 2**53
    assert seen == IMAGE_FIELDS.keys()
    assert absent > 0


def test_merge_cc_is_written_as_a_float(served):
    record = next(r for p in range(20) for r in served.world.images(p) if r.computed_lat is not None)
    text = served.graph(f"/{record.image_id}", fields="merge_cc").text
    assert re.search(r'"merge_cc": \d\.\d+e\+18', text)


def test_no_token(served):
    response = served.http.get("/mapillary/123")
    assert response.status_code == 500
    error = error_of(response)
    assert (error["type"], error["code"], error["message"]) == (
        "MLYApiException",
        190,
        "Invalid OAuth 2.0 Access Token",
    )


def test_malformed_token(served):
    for token in ("nonsense", "MLY|1|short", "MLY|x|" + "0" * 32):
        response = served.http.get("/mapillary/123", params={"access_token": token})
        assert response.status_code == 401
        error = error_of(response)
        assert (error["type"], error["code"], error["message"]) == ("OAuthException", 190, "Failed to decode")


def test_unknown_token_by_header_and_by_query(served):
    token = "MLY|42|" + "a" * 32
    by_header = served.http.get("/mapillary/123", headers={"Authorization": f"OAuth {token}"})
    by_query = served.http.get("/mapillary/123", params={"access_token": token})
    assert (by_header.status_code, by_query.status_code) == (401, 400)
    for response in (by_header, by_query):
        error = error_of(response)
        assert (error["type"], error["code"], error["message"]) == (
            "OAuthException",
            190,
            "Error validating application",
        )


def test_token_in_header_is_accepted(served):
    record = served.world.images(0)[0]
    assert (
        served.http.get(f"/mapillary/{record.image_id}", headers={"Authorization": f"OAuth {TOKEN}"}).status_code == 200
    )


@pytest.mark.parametrize("image_id", ["123", "999999999999999999", "abc", "１２３"])
def test_unknown_id_is_400(served, image_id):
    response = served.graph(f"/{image_id}")
    assert response.status_code == 400
    error = error_of(response)
    assert (error["type"], error["code"], error["error_subcode"]) == ("MLYApiException", 100, 33)
    assert error["message"].startswith(f"Unsupported get request. Object with ID '{image_id}' does not exist, ")


def test_rate_limit_is_403(crowded):
    record = crowded.world.images(0)[0]
    answers = [crowded.graph(f"/{record.image_id}") for _ in range(6)]
    assert [a.status_code for a in answers] == [200] * 5 + [403]
    error = error_of(answers[-1])
    assert (error["type"], error["code"], error["is_transient"]) == ("MLYApiException", 4, True)
    assert error["message"] == "Application request limit reached"


def test_box_too_big_is_measured_by_area(served):
    thin = served.graph("/images", bbox="0,40,1.0,40.009")
    assert thin.status_code == 200
    response = served.graph("/images", bbox="0,40,0.11,40.1")
    assert response.status_code == 500
    assert error_of(response)["message"] == (
        "Bounding box area is too large. Maximum allowed area is 0.010 square degrees, but got 0.011"
    )


def test_dense_box_is_refused_whatever_the_limit(crowded):
    crowd = next(p for p in range(crowded.world.size) if crowded.world.place(p).image_count > 6)
    bbox = box_around(crowded.world.images(crowd)[0])
    for params in ({}, {"limit": "1"}, {"limit": "1", "fields": "id"}):
        response = crowded.graph("/images", bbox=bbox, **params)
        assert response.status_code == 500
        error = error_of(response)
        assert error["code"] == 1
        assert error["message"] == "Please reduce the amount of data you're asking for, then retry your request"


def test_crowded_box_silently_returns_less_and_splitting_finds_all(crowded):
    place = next(p for p in range(crowded.world.size) if crowded.world.place(p).image_count == 6)
    records = crowded.world.images(place)
    whole = crowded.graph("/images", bbox=box_around(records[0], 0.001)).json()["data"]
    assert len(whole) < len(records)
    single = {
        row["id"] for r in records for row in crowded.graph("/images", bbox=box_around(r, 0.00001)).json()["data"]
    }
    assert single == {r.image_id for r in records}


def test_box_holds_what_is_inside_and_filters_apply(served):
    for place in range(40):
        records = served.world.images(place)
        bbox = box_around(records[0])
        west, south, east, north = (float(x) for x in bbox.split(","))
        inside = {r.image_id for r in served.world.images_in(west, south, east, north)}
        data = served.graph("/images", bbox=bbox, fields="id,is_pano,captured_at").json()["data"]
        assert records[0].image_id in inside
        assert {row["id"] for row in data} == inside
        panos = served.graph("/images", bbox=bbox, is_pano="true", fields="is_pano").json()["data"]
        assert {row["id"] for row in panos} == {row["id"] for row in data if row["is_pano"]}
    assert len(served.graph("/images", bbox=bbox, limit="1").json()["data"]) == 1


BAD_PARAMETERS = [
    {},
    {"bbox": "1,2,3"},
    {"bbox": "a,b,c,d"},
    {"bbox": "3,2,1,4"},
    {"bbox": "0,0,nan,1"},
    {"bbox": "0,0,0.01,0.01", "limit": "2001"},
]


@pytest.mark.parametrize("params", BAD_PARAMETERS)
def test_bad_parameters_are_400(served, params):
    response = served.graph("/images", **params)
    assert response.status_code == 400
    assert error_of(response)["code"] == 100


def test_unknown_field_is_400(served):
    record = served.world.images(0)[0]
    response = served.graph(f"/{record.image_id}", fields="id,smell")
    assert response.status_code == 400
    assert "smell" in error_of(response)["message"]


def test_many_ids(served):
    records = served.world.images(3)
    ids = [r.image_id for r in records]
    many = served.graph("/", ids=",".join(ids), fields="id,sequence").json()
    assert list(many) == ids
    assert all(row["sequence"] == records[0].sequence_id for row in many.values())
    assert served.graph("/", ids=",".join(str(10**17 + i) for i in range(51))).status_code == 400


def test_thumbs_have_their_sizes_and_addresses_expire(served):
    record = next(r for p in range(20) for r in served.world.images(p) if r.is_pano)
    row = served.graph(f"/{record.image_id}", fields="thumb_256_url,thumb_1024_url,thumb_original_url").json()
    for name, width in (("thumb_256_url", 256), ("thumb_1024_url", 1024), ("thumb_original_url", 1024)):
        response = served.http.get(row[name])
        assert response.headers["content-type"] == "image/jpeg"
        image = Image.open(io.BytesIO(response.content))
        assert image.size == (width, width // 2)
        assert not image.getexif()
    url = row["thumb_256_url"]
    end = re.search(r"oe=([0-9A-F]+)&", url).group(1)
    assert time.time() < int(end, 16) < time.time() + 4000
    assert served.http.get(url.replace(f"oe={end}", f"oe={int(time.time()) - 9:X}")).status_code == 403
    assert served.http.get(url[:-3] + "000").status_code == 403
    assert served.http.get(url.split("?")[0]).status_code == 403
