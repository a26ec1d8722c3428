"""What every answer to a re-check leads to, and how questions are gathered."""

import asyncio
import hashlib
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from schemas.settings.collect import CollectSettings
from tasks.collect.batches import Batches
from tasks.collect.previous import DELETED
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.providers.provider import FetchedBytes
from tasks.collect.recheck import WorkerContext, work
from tasks.collect.responses import FetchedImage, StageResponses
from tasks.runtime.runner import Kept
from tasks.services import ServiceError
from tasks.services.response_store import ResponseStore


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.frombytes("RGB", (8, 4), random.Random(seed).randbytes(96)).save(out, "JPEG")
    return out.getvalue()


OLD, NEW, NEWER = picture(1), picture(2), picture(3)
BROKEN = (NEW[:-30], NEW[:20], b"<html>try later</html>", b"")
NOT_FOUND = ServiceError("mapillary", "not_found", "no such image", status=400)
EXPIRED = ServiceError("mapillary", "expired", "past its time", status=403)


@dataclass
class Source:
    """A client that answers as it is told to."""

    listed: dict[str, Any] = field(default_factory=lambda: {"7": {"id": "7", "thumb_original_url": "u0"}})
    alone: list[Any] = field(default_factory=list)  # answers or errors, one after the other
    host: list[Any] = field(default_factory=list)
    etags: list[str | None] = field(default_factory=list)

    async def images_by_id(self, ids: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
        return {one: self.listed[one] for one in ids if one in self.listed}

    async def image(self, image_id: str, fields: Sequence[str]) -> dict[str, Any]:
        return _said(self.alone.pop(0))

    async def fetch_if_changed(self, url: str, etag: str | None) -> FetchedBytes | None:
        self.etags.append(etag)
        return _said(self.host.pop(0))


def _said(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def kept(folder: Path) -> StageResponses:
    """As another process finds them."""
    return StageResponses(ResponseStore(folder / "responses.sqlite"), "collect")


async def checked(
    source: Any,
    etag: str | None = '"e1"',
    sha256: str | None = None,
    responses: StageResponses | None = None,
    **refresh: Any,
) -> Kept:
    item = {
        "id": "i1",
        "subject": "image",
        "place_id": "p1",
        "source": "mapillary",
        "source_id": "7",
        "etag": etag,
        "news": 2,
        "nth": 5,
    }
    item |= {"lost": False, "refused": False}
    item["source_sha256"] = sha256 or hashlib.sha256(OLD).hexdigest()
    wanted = CollectSettings(refresh=refresh)
    provider = MapillaryStreets(source)
    known = {"mapillary": Batches(provider.addresses, 50, 0.0)}
    bench = WorkerContext({"mapillary": provider}, known, wanted, responses or StageResponses())
    outcome = await work(item, bench)
    assert isinstance(outcome, Kept)
    return outcome


def row(outcome: Kept) -> dict[str, Any]:
    return outcome.rows["checks"][0]


async def test_an_unchanged_picture_is_the_same() -> None:
    source = Source(host=[None])
    found = row(await checked(source))
    assert (found["status"], found["news"], found["nth"], found["etag"]) == ("same", 2, 5, '"e1"')
    assert source.etags == ['"e1"']


async def test_a_host_that_marks_the_same_bytes_anew_changes_nothing() -> None:
    found = row(await checked(Source(host=[FetchedBytes(OLD, '"e2"')])))
    assert (found["status"], found["news"], found["etag"]) == ("same", 2, '"e2"')


@pytest.mark.parametrize("etag", ['"e1"', None])
async def test_other_bytes_are_a_change(etag: str | None) -> None:
    found = row(await checked(Source(host=[FetchedBytes(NEW, "")]), etag))
    assert (found["status"], found["news"], found["etag"]) == ("changed", 3, None)
    assert found["source_sha256"] == hashlib.sha256(NEW).hexdigest()


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("etag", ['"e1"', None])
async def test_bytes_that_are_no_picture_change_nothing(broken: bytes, etag: str | None) -> None:
    bad = FetchedBytes(broken, '"e2"')
    outcome = await checked(Source(host=[bad, bad]), etag)
    found = row(outcome)
    assert (found["status"], found["news"], found["etag"]) == ("unavailable", 2, etag) and not outcome.gone
    assert found["source_sha256"] == hashlib.sha256(OLD).hexdigest()
    # FetchedBytes once more it is whole: as it was, or another one.
    for second, status in ((None, "same"), (FetchedBytes(OLD, ""), "same"), (FetchedBytes(NEW, ""), "changed")):
        assert row(await checked(Source(host=[bad, second]), etag))["status"] == status


async def test_what_a_killed_run_had_not_decoded_is_not_believed(tmp_path: Path) -> None:
    await kept(tmp_path).keep_image("mapillary/7", FetchedImage.now(NEW[:-30], '"e2"', "https://host/7.jpg"))
    source = Source(host=[FetchedBytes(NEW, '"e2"')])
    assert row(await checked(source, responses=kept(tmp_path)))["status"] == "changed" and source.etags == ['"e1"']


async def test_a_list_that_lacks_a_picture_ends_nothing_by_itself() -> None:
    there = await checked(Source(listed={}, alone=[{"id": "7", "thumb_original_url": "u"}], host=[None]))
    assert row(there)["status"] == "same" and not there.gone
    gone = await checked(Source(listed={}, alone=[NOT_FOUND]))
    assert row(gone)["status"] == "deleted" and gone.gone == {"images": {"i1": DELETED}}
    for kind in ("outage", "rate_limit", "auth", "bad_response"):
        with pytest.raises(ServiceError, match="trouble"):
            await checked(Source(listed={}, alone=[ServiceError("mapillary", kind, "trouble")]))  # type: ignore[arg-type]


LOST = ServiceError("mapillary", "not_found", "nothing there", status=404)
GONE = ServiceError("mapillary", "expired", "past its time", status=410)
FRESH = {"id": "7", "thumb_original_url": "u1"}


@pytest.mark.parametrize(
    "source",
    [Source(host=[LOST]), Source(host=[EXPIRED, LOST], alone=[FRESH]), Source(host=[GONE] * 4, alone=[FRESH] * 3)],
)
async def test_a_host_that_has_lost_the_bytes_ends_nothing_and_is_no_news(source: Source) -> None:
    outcome = await checked(source)
    found = row(outcome)
    assert (found["status"], found["news"], found["nth"]) == ("unavailable", 2, 5) and not outcome.gone
    assert (found["etag"], found["source_sha256"]) == ('"e1"', hashlib.sha256(OLD).hexdigest())


@pytest.mark.parametrize(("fault", "asked"), [("gone", 1), ("410", 4)])
async def test_no_such_file_and_gone_for_good_are_told_over_the_wire(streets: Any, fault: str, asked: int) -> None:
    """404 is said at once; 410 may speak of an old address, so new ones are asked for before it is believed."""
    streets.put("7", lat=50.0, lon=8.0, fault=fault)
    found = row(await checked(streets.client()))
    assert (found["status"], found["news"]) == ("unavailable", 2)
    assert streets.asked["picture 7"] == asked
    streets.shots["7"].fault = None
    assert (
        row(await checked(streets.client(), etag=None, sha256=hashlib.sha256(streets.original("7")).hexdigest()))[
            "status"
        ]
        == "same"
    )


@pytest.mark.parametrize("kind", ["outage", "rate_limit", "timeout", "bad_response", "auth"])
async def test_a_host_in_trouble_is_a_failure(kind: Any) -> None:
    with pytest.raises(ServiceError, match="trouble"):
        await checked(Source(host=[ServiceError("mapillary", kind, "trouble")]))


async def test_an_address_that_was_only_old_is_not_taken_for_the_end_of_its_picture() -> None:
    assert row(await checked(Source(host=[GONE, GONE, None], alone=[FRESH] * 2)))["status"] == "same"


async def test_a_check_that_was_killed_does_not_fetch_again_what_it_had(tmp_path: Path) -> None:
    first = row(await checked(Source(host=[FetchedBytes(NEW, '"e2"')]), responses=kept(tmp_path)))
    source = Source(host=[None])
    again = row(await checked(source, responses=kept(tmp_path)))
    assert source.etags == ['"e2"'], "the host says whether what is there is still the picture"
    assert again["checked_at"] > first["checked_at"]
    assert {**again, "checked_at": 0} == {**first, "checked_at": 0} and again["status"] == "changed"
    came = kept(tmp_path).find_image("mapillary/7")
    assert came is not None and (came.data, came.at) == (NEW, again["checked_at"])
    # It has changed once more since, or back to what it was.
    assert row(await checked(Source(host=[FetchedBytes(NEWER, '"e3"')]), responses=kept(tmp_path)))["etag"] == '"e3"'
    assert row(await checked(Source(host=[FetchedBytes(OLD, '"e1"')]), responses=kept(tmp_path)))["status"] == "same"


async def test_an_address_past_its_time_is_asked_for_again() -> None:
    assert row(await checked(Source(host=[EXPIRED, None], alone=[FRESH])))["status"] == "same"
    with pytest.raises(ServiceError) as caught:
        await checked(Source(host=[EXPIRED] * 9, alone=[FRESH] * 9))
    assert caught.value.kind == "expired"


async def test_a_picture_without_an_address_is_not_called_changed() -> None:
    assert row(await checked(Source(listed={"7": {"id": "7"}})))["status"] == "unavailable"


async def test_bytes_are_not_asked_for_when_that_is_not_wanted() -> None:
    source = Source()
    assert row(await checked(source, bytes="never"))["status"] == "same"
    assert source.etags == []


async def test_a_place_is_looked_at_again_without_a_question() -> None:
    item = {"id": "p1", "subject": "place", "place_id": "p1", "source_id": None, "etag": None, "source_sha256": None}
    bench = WorkerContext(None, None, CollectSettings())  # type: ignore[arg-type]
    outcome = await work({**item, "news": 0, "nth": 1}, bench)
    assert isinstance(outcome, Kept)
    assert (row(outcome)["status"], row(outcome)["news"]) == ("look_again", 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 20), st.sets(st.integers(0, 30)))
def test_everyone_gets_the_answer_to_its_own_key(keys: list[int], most: int, unknown: set[int]) -> None:
    asked: list[list[str]] = []

    async def ask(batch: list[str]) -> dict[str, Any]:
        asked.append(batch)
        await asyncio.sleep(0)
        return {key: {"is": key} for key in batch if int(key) not in unknown}

    async def everyone() -> list[Any]:
        batches = Batches(ask, most, 0.0)
        return await asyncio.gather(*(batches.get(str(key)) for key in keys))

    answers = asyncio.run(everyone())
    assert answers == [None if key in unknown else {"is": str(key)} for key in keys]
    assert all(len(batch) <= most and len(set(batch)) == len(batch) for batch in asked)
    assert sum(map(len, asked)) <= len(keys)


async def test_many_keys_make_few_requests_and_a_failed_one_fails_its_own() -> None:
    asked: list[list[str]] = []

    async def ask(batch: list[str]) -> dict[str, Any]:
        asked.append(batch)
        if "60" in batch:
            raise NOT_FOUND
        return {key: {} for key in batch}

    batches = Batches(ask, 50)
    answers = await asyncio.gather(*(batches.get(str(key)) for key in range(120)), return_exceptions=True)
    assert [len(batch) for batch in asked] == [50, 50, 20]
    assert [isinstance(answer, ServiceError) for answer in answers] == [50 <= key < 100 for key in range(120)]
    assert await batches.get("60x") == {}
