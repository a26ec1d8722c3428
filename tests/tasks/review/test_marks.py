"""Marks of people: read from the site's file, checked against the snapshot, counted with an exact interval."""

import contextlib
import http.client
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from scipy.stats import binomtest
from starlette.testclient import TestClient

from schemas.errors import InputError
from schemas.settings.review import ReviewSettings
from tasks.lake import Commit, Lake
from tasks.review.marks import import_marks, read_marks
from tasks.review.serve import make_app
from tasks.review.site import build_site
from tasks.review.site.page import Source
from tasks.review.site.precision import label_text, precision, sampled_ids

MakeLake = Callable[..., Lake]
Serving = Callable[[Lake, str], contextlib.AbstractContextManager[str]]
SETTINGS = ReviewSettings(thumbnail_px=64, look_around=0, sample=6)
NOW = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def site(make_lake: MakeLake) -> tuple[Lake, dict[str, Any]]:
    lake = make_lake()
    versions = {name: lake.version(name) for name in ("places", "images", "labels", "rejects")}
    row = {
        **{"snapshot_id": "b" * 24, "table_versions_json": json.dumps(versions), "counts_json": "{}"},
        **{"checks_json": "[]", "checks_passed": True, "status": "pending", "created_at": NOW, "stage": "review"},
        **{"report": f"reports/{'b' * 24}/index.html", "item_id": "b" * 24, "made_from": "m", "run_id": "r"},
    }
    lake.upsert("snapshots", [row], Commit("review", 1))
    stored = lake.read("snapshots").row(0, named=True)
    build_site(lake, stored, SETTINGS)
    return lake, stored


def file_of(lake: Lake, row: dict[str, Any], wrong: int = 1) -> dict[str, Any]:
    """All kept pictures marked, the first drawn ones wrong; and a picture the snapshot does not keep."""
    sample = sampled_ids(Source(lake, row, SETTINGS))
    labels = lake.read("labels").select("image_id", "sha256", label=label_text()).to_dicts()
    marks = [
        {**one, "mark": "wrong" if one["image_id"] in sample[:wrong] else "right", "marked_at": NOW.isoformat()}
        for one in labels
    ]
    marks.append({**marks[0], "image_id": "unknown"})
    marks.append({**marks[0], "label": "Atlantis; ; "})
    return {"format": "geofix-marks", "version": 1, "snapshot_id": row["snapshot_id"], "marks": marks}


def test_marks_of_the_sample_give_the_precision(site: tuple[Lake, dict[str, Any]]) -> None:
    lake, row = site
    given = read_marks(json.dumps(file_of(lake, row)))
    done = import_marks(lake, given, "Ada")
    assert done.taken + sum(done.refused.values()) == len(given.marks) and done.taken == 13
    assert done.precision is not None and (done.precision.right, done.precision.marked) == (5, 6)
    assert import_marks(lake, given, "Ada").precision == done.precision, "the same file twice changes nothing"
    assert lake.read("marks").height == 13 and lake.read("marks")["sampled"].sum() == 6
    start = (lake.root / "reports" / row["snapshot_id"] / "data" / "start.js").read_text()
    assert "5 of 6 marked pictures right" in start
    import_marks(lake, read_marks(json.dumps(file_of(lake, row, wrong=6))), "Bob")
    import_marks(lake, read_marks(json.dumps(file_of(lake, row, wrong=6))), "Cy")
    assert import_marks(lake, given, "Ada").precision.right == 0, "most say wrong"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "format"),
        ({"marks": [{"image_id": "a"}]}, "marks.0.sha256"),
        ({"snapshot_id": None}, "snapshot_id"),
    ],
)
def test_a_file_of_another_form_is_refused(site: tuple[Lake, dict[str, Any]], change: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_marks(json.dumps({**file_of(*site), **change}))


def test_the_interval_is_the_exact_one() -> None:
    for right, marked in ((0, 5), (5, 5), (47, 50), (1, 1)):
        ours, theirs = precision(right, marked), binomtest(right, marked).proportion_ci(0.95, "exact")
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_only_the_holder_of_the_token_is_served(site: tuple[Lake, dict[str, Any]]) -> None:
    lake, row = site
    client = TestClient(make_app(lake, row["snapshot_id"], "s3cret", "Ada"), base_url="http://127.0.0.1:8790")
    assert client.get("/").status_code == client.get("/?token=wrong").status_code == 403
    assert client.get("/data/site.js").status_code == 403 and client.post("/marks", json={}).status_code == 403
    assert "<!doctype html>" in client.get("/?token=s3cret").text
    assert client.get("/data/site.js").status_code == 200
    image = lake.read("images").row(0, named=True)
    shown = client.get(f"/images/{image['sha256'][:2]}/{image['sha256']}.jpg")
    assert shown.content == lake.images.read(image["sha256"], "jpg")
    long = "/" + "x" * 300
    for path in ("/..%2f..%2fnames.key", "/images/aa/names.key", "/data/nothing.js", "/index.html%00.png", long):
        assert client.get(path).status_code == 404, path
    # Links of flow runs lead to any report, by the name of its snapshot or stage.
    (lake.root / "reports/plan").mkdir()
    (lake.root / "reports/plan/map.png").write_bytes(b"png")
    assert client.get("/plan/map.png").content == b"png" and client.get("/plan/names.key").status_code == 404
    assert client.get(f"/{row['snapshot_id']}/data/site.js").status_code == 200
    given, home = file_of(lake, row), {"origin": "http://127.0.0.1:8790"}
    assert client.post("/marks", json=given, headers={"origin": "http://elsewhere"}).status_code == 403
    done = client.post("/marks", json=given, headers=home).json()
    assert done["says"].startswith("Label precision 83.3%")
    assert done["outcomes"] == [""] * 13 + ["the snapshot keeps no such picture", "it was another picture or label"]
    start = (lake.root / "reports" / row["snapshot_id"] / "data" / "start.js").read_text()
    assert "5 of 6 marked pictures right" in start, "the site follows"
    assert client.post("/marks", json={"marks": 1}, headers=home).status_code == 400
    (lake.root / "reports" / row["snapshot_id"] / "index.html").unlink()
    assert (client.get("/").status_code, "run `geofix review`" in client.get("/").text) == (404, True)


@pytest.mark.parametrize(
    ("listens_on", "base_url", "asked_as", "status"),
    [
        ("127.0.0.1", None, "127.0.0.1:8790", 200),
        ("127.0.0.1", None, "localhost:8790", 200),
        ("127.0.0.1", None, "[::1]:8790", 200),
        ("127.0.0.1", None, "rebound.example:8790", 421),
        ("127.0.0.1", None, "127.0.0.1.rebound.example", 421),
        ("127.0.0.1", None, "", 421),
        ("127.0.0.1", None, "[", 421),
        ("127.0.0.1", None, "192.0.2.7:8790", 421),
        ("192.0.2.7", None, "192.0.2.7:8790", 200),
        ("0.0.0.0", None, "192.0.2.7:8790", 200),
        ("0.0.0.0", None, "rebound.example:8790", 421),
        ("0.0.0.0", "https://data.example/geo", "data.example", 303),
    ],
)
def test_a_name_that_is_not_ours_is_not_answered(
    site: tuple[Lake, dict[str, Any]], listens_on: str, base_url: str | None, asked_as: str, status: int
) -> None:
    lake, row = site
    app = make_app(lake, row["snapshot_id"], "s3cret", "Ada", base_url, listens_on)
    headers = {"host": asked_as, "cookie": "geofix_review=s3cret"}
    assert TestClient(app, follow_redirects=False).get("/", headers=headers).status_code == status


def test_behind_a_base_url_all_reports_have_an_address(site: tuple[Lake, dict[str, Any]]) -> None:
    lake, row = site
    name = row["snapshot_id"]
    (lake.root / "reports/plan").mkdir()
    (lake.root / "reports/plan/map.png").write_bytes(b"png")
    base = "https://data.example/geo/review"
    app = make_app(lake, name, "s3cret", "Ada", base)
    # A proxy hands the path on as it is, or without the part that led here.
    for prefix in ("/geo/review", ""):
        client = TestClient(app, base_url="https://data.example", follow_redirects=False)
        linked = client.get(f"{prefix}/{name}/index.html")
        assert linked.status_code == 403 and 'type="password"' in linked.text
        assert client.get(f"{prefix}/plan/map.png").status_code == 403
        [action] = re.findall(r'action="([^"]+)"', linked.text)
        assert action == f"/geo/review/sign-in?to=/{name}/index.html"
        sent = action if prefix else action.removeprefix("/geo/review")
        assert client.post(sent, data={"token": "wrong"}).status_code == 403
        opened = client.post(sent, data={"token": "s3cret"})
        assert opened.headers["location"] == f"/geo/review/{name}/index.html"
        cookie = opened.headers["set-cookie"].lower()
        assert "path=/geo/review/" in cookie and "samesite=lax" in cookie and "secure" in cookie
        client.cookies.set("geofix_review", "s3cret")
        assert client.get(f"{prefix}/").headers["location"] == f"/geo/review/{name}/index.html"
        assert client.get(f"{prefix}/plan/map.png").content == b"png"
        image = lake.read("images").row(0, named=True)
        shown = client.get(f"{prefix}/{name}/images/{image['sha256'][:2]}/{image['sha256']}.jpg")
        assert shown.content == lake.images.read(image["sha256"], "jpg")
        for path in ("/..%2fnames.key", f"/{name}/..%2f..%2fnames.key", "/.state/prefect-auth", "/nothing/index.html"):
            assert client.get(prefix + path).status_code == 404, path
        given, marks = file_of(lake, row), f"{prefix}/{name}/marks"
        assert client.post(marks, json=given, headers={"origin": "https://elsewhere"}).status_code == 403
        assert client.post(marks, json=given, headers={"origin": "https://data.example"}).status_code == 200
        away = client.post(f"{prefix}/sign-in?to=//evil.example/", data={"token": "s3cret"})
        assert away.headers["location"] == "/geo/review/"


def test_marks_sent_at_once_are_all_stored(site: tuple[Lake, dict[str, Any]], serving: Serving) -> None:
    lake, row = site
    given = file_of(lake, row)
    with serving(lake, row["snapshot_id"]) as address, ThreadPoolExecutor(8) as pool:
        headers = {"origin": address, "cookie": "geofix_review=t"}

        def post(mark: dict[str, Any]) -> list[str]:
            body = {**given, "marks": [mark]}
            answer = httpx.post(f"{address}/marks", json=body, headers=headers, timeout=60).raise_for_status()
            return list(answer.json()["outcomes"])

        marks = given["marks"][:13]
        assert list(pool.map(post, marks)) == [[""]] * 13
        stored = dict(lake.read("marks").select("image_id", "mark").iter_rows())
        assert stored == {mark["image_id"]: mark["mark"] for mark in marks}


def test_a_body_in_chunks_is_read_up_to_the_limit_only(site: tuple[Lake, dict[str, Any]], serving: Serving) -> None:
    lake, row = site
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(60):
            sent += 1
            yield b" " * 1_000_000

    with serving(lake, row["snapshot_id"]) as address:
        asked = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        headers = {"Origin": address, "Cookie": "geofix_review=t", "Transfer-Encoding": "chunked"}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # hung up while more was on its way
            asked.request("POST", "/marks", chunks(), headers, encode_chunked=True)
        status = 413
        with contextlib.suppress(ConnectionResetError):
            status = asked.getresponse().status
        asked.close()
    assert status == 413 and sent < 40, "the rest was not read"


def test_notes_are_stored_with_author_time_and_licence(site: tuple[Lake, dict[str, Any]]) -> None:
    lake, row = site
    first, second = lake.read("labels").select("image_id", "sha256").rows()[:2]
    note = {"image_id": first[0], "sha256": first[1], "licence": "CC BY-SA 4.0", "noted_at": NOW.isoformat()}
    given = {**file_of(lake, row), "marks": [], "notes": [{**note, "notes": "  Red phone boxes: England.  "}]}
    client = TestClient(make_app(lake, row["snapshot_id"], "s3cret", "Ada"), base_url="http://127.0.0.1:8790")
    client.get("/?token=s3cret")
    home = {"origin": "http://127.0.0.1:8790"}
    assert client.post("/marks", json=given, headers={"origin": "http://elsewhere"}).status_code == 403
    assert client.post("/marks", json=given, headers=home).json()["note_outcomes"] == [""]
    [stored] = lake.read("notes").to_dicts()
    assert (stored["author"], stored["licence"], stored["notes"]) == (
        "Ada",
        "CC BY-SA 4.0",
        "Red phone boxes: England.",
    )
    assert stored["image_id"] == first[0] and stored["noted_at"] == NOW and stored["snapshot_id"] == row["snapshot_id"]
    page = "".join(path.read_text() for path in (lake.root / "reports" / row["snapshot_id"] / "data").glob("picture-*"))
    assert "Red phone boxes: England." in page, "the picture's page shows them"

    others = [{**note, "notes": "Again."}, {**note, "image_id": "unknown", "notes": "x"}]
    others += [{**note, "sha256": second[1], "notes": "x"}, {**note, "notes": " "}]
    done = import_marks(lake, read_marks(json.dumps({**given, "notes": others})), "Ada")
    assert done.note_outcomes == ("", "the snapshot keeps no such picture", "it was another picture", "empty")
    assert done.notes_taken == 1 and done.taken == 0
    assert lake.read("notes")["notes"].to_list() == ["Again."], "a second text replaces the first"
    import_marks(lake, read_marks(json.dumps({**given, "notes": others[:1]})), "Bob")
    assert sorted(lake.read("notes")["author"]) == ["Ada", "Bob"]
    for wrong in ({"licence": "all rights reserved"}, {"notes": ""}, {"notes": "x" * 8001}):
        with pytest.raises(InputError, match=r"notes\.0"):
            read_marks(json.dumps({**given, "notes": [{**note, "notes": "x", **wrong}]}))
