"""A small lake with places, pictures, labels, rejects and runs, as the stages before the review leave it."""

import contextlib
import io
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from PIL import Image, ImageDraw

from tasks.lake import Commit, Lake
from tasks.review.serve import make_app
from tasks.runtime.runner import digest

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CITIES = [
    ("FR", "France", "Île-de-France", "Paris", 48.86, 2.35, "train"),
    ("JP", "Japan", "Kyōto", "Kyoto", 35.01, 135.77, "train"),
    ("BR", "Brazil", "Bahia", "Salvador", -12.97, -38.5, "validation"),
    ("KE", "Kenya", "Nairobi", "Nairobi", -1.29, 36.82, "benchmark"),
    ("NZ", "New Zealand", "Otago", "Dunedin", -45.87, 170.5, "train"),
    ("US", "United States", "Utah", "Moab", 38.57, -109.55, "train"),
    ("NO", "Norway", "Troms", "Tromsø", 69.65, 18.96, "train"),
    ("IN", "India", "Kerala", "Kochi", 9.93, 76.26, "train"),
]


def picture(seed: int, width: int = 640, height: int = 320) -> bytes:
    rng = random.Random(seed)
    sky = tuple(rng.randrange(120, 240) for _ in range(3))
    image = Image.new("RGB", (width, height), sky)
    draw = ImageDraw.Draw(image)
    ground = tuple(rng.randrange(60, 160) for _ in range(3))
    draw.rectangle((0, height * 0.55, width, height), fill=ground)
    draw.polygon(
        [(width * 0.2, height), (width * 0.48, height * 0.55), (width * 0.52, height * 0.55), (width * 0.8, height)],
        fill=(70, 70, 74),
    )
    draw.text((20, 20), f"scene {seed}", fill=(20, 20, 20), font_size=40)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=85)
    return out.getvalue()


def system(stage: str, item: str) -> dict[str, Any]:
    made_from = digest(stage, item, "settings")
    return {"stage": stage, "item_id": item, "made_from": made_from, "run_id": f"run-{stage}", "written_at": NOW}


def rows_of(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Rows by table: per city a kept panorama, and for some a rejected photo."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("places", "images", "labels", "rejects", "runs")}
    for number, (code, country, region, city, lat, lon, split) in enumerate(CITIES):
        place_id = digest("place", city)
        rows["places"].append(
            {"place_id": place_id, "country": code, "country_name": country, "cell": f"N00E{number:03}", "lat": lat,
             "lon": lon, "split": split, **system("plan", place_id)}
        )  # fmt: skip
        for kind in ("panorama", "photo"):
            image_id = digest("mapillary", f"{number}{kind}", place_id)
            sha256 = lake.images.put(picture(number * 2 + (kind == "photo")), "jpg")
            rows["images"].append(
                {"image_id": image_id, "kind": kind, "place_id": place_id, "lat": lat, "lon": lon,
                 "source": "mapillary", "source_id": f"10000000000{number}", "sequence_id": f"seq{number}",
                 "licence": "CC BY-SA 4.0", "creator": f"walker{number % 3}",
                 "attribution": f"Image by walker{number % 3} on Mapillary, CC BY-SA 4.0",
                 "captured_at": NOW - timedelta(days=300), "fetched_at": NOW, "request_url": "https://example.org/x",
                 "http_status": 200, "sha256": sha256, "extension": "jpg", "bytes": 1, "width": 640, "height": 320,
                 **system("collect", place_id)}
            )  # fmt: skip
            if kind == "photo" and number % 3 == 0:
                evidence = {"reason": "A plain field without any writing.", "score": 2.0, "model": "judge"}
                rows["rejects"].append(
                    {
                        "reason": "non_localizable",
                        "evidence_json": json.dumps(evidence),
                        **system("curate.labels", image_id),
                    }
                )
                continue
            rows["labels"].append(
                {"image_id": image_id, "place_id": place_id, "sha256": sha256, "lat": lat, "lon": lon,
                 "country_code": code, "country": country, "region": region, "city": city,
                 "localizability": "localizable", "localizability_score": 6.5, "judge_model": "judge",
                 "judge_reason": "A two-lane road with a centre line and a sign in the local language.",
                 "split": split, **system("curate.labels", image_id)}
            )  # fmt: skip
    lost = digest("place", "nowhere")
    rows["places"].append(
        {"place_id": lost, "country": "DZ", "country_name": "Algeria", "cell": "N26E002", "lat": 26.1, "lon": 2.9,
         "split": "train", **system("plan", lost)}
    )  # fmt: skip
    rows["rejects"].append(
        {"reason": "no_imagery_near", "evidence_json": '{"half_size_m": 5000, "seen": 0, "tried": 0}',
         **system("collect", lost)}
    )  # fmt: skip
    places, images = len(rows["places"]), len(rows["images"])
    totals = {"plan": (places, 0), "collect": (places, 1), "curate.labels": (images, len(rows["rejects"]) - 1)}
    written = {"plan": "places", "collect": "images", "curate.labels": "labels"}
    for stage, (total, rejected) in totals.items():
        rows["runs"].append(
            {"status": "done", "total": total, "skipped": 0, "items_in": total, "kept": total - rejected,
             "rejected": rejected, "failed": 0, "started_at": NOW, "finished_at": NOW,
             "output_versions_json": json.dumps({written[stage]: 0, "rejects": 0}), **system(stage, stage)}
        )  # fmt: skip
    return rows


@pytest.fixture(scope="session")
def reviewed_rows() -> Callable[[Lake], dict[str, list[dict[str, Any]]]]:
    """reviewed_rows(lake) -> rows by table; their pictures are stored in the lake."""
    return rows_of


@pytest.fixture
def make_lake(tmp_path: Path) -> Callable[..., Lake]:
    """make_lake(change) -> a lake whose rows went through `change(rows)` before they were written."""

    def make(change: Callable[[dict[str, list[dict[str, Any]]]], None] = lambda rows: None, name: str = "lake") -> Lake:
        lake = Lake(tmp_path / name)
        rows = rows_of(lake)
        change(rows)
        for table, table_rows in rows.items():
            write = lake.append if table == "runs" else lake.upsert
            write(table, table_rows, Commit(f"test-{table}", 1))
        return lake

    return make


@pytest.fixture(scope="session")
def serving() -> Callable[[Lake, str], contextlib.AbstractContextManager[str]]:
    """serving(lake, snapshot_id) -> a real server of the site on loopback; gives its address, whose token is `t`."""

    @contextlib.contextmanager
    def serve(lake: Lake, snapshot_id: str) -> Iterator[str]:
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(lake, snapshot_id, "t", "Ada"), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            listening.close()

    return serve
