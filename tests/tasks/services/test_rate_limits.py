"""A service that says its limit is reached: everybody waits, one asks, nobody waits for ever, and it is known."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.services import ServicesSettings
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.services import ServiceError, connect
from tasks.services.http import HttpClient
from tasks.services.limits import LONGEST_LIMIT_PAUSE_S, Breaker, Pauses, Suspended
from tasks.services.rate_budget import BudgetFile, Paused, ProcessRateBudget, asking, pause, paused_s

LIMIT = {"error": {"message": "Application request limit reached", "type": "MLYApiException", "code": 4}}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def limit(after: int, clock: Clock, pause_s: float = 60.0) -> Breaker:
    """As `host_limits` makes it for rate limits."""
    return Breaker(after, pause_s, LONGEST_LIMIT_PAUSE_S, 900.0, clock=clock)


class TestRefusals:
    def closed(self, clock: Clock, **options: Any) -> Breaker:
        refusals = limit(3, clock, **options)
        for _ in range(3):
            refusals.failed()
        assert refusals.open
        return refusals

    async def test_single_refusals_close_nothing(self, clock: Clock) -> None:
        refusals = limit(3, clock)
        for _ in range(20):
            assert refusals.failed() is None and refusals.failed() is None
            refusals.answered(clock())
        assert not refusals.open and await refusals.enter(clock.sleep) is False and clock.slept_s == []

    async def test_pauses_double_while_one_after_the_other_finds_out(self, clock: Clock) -> None:
        refusals = self.closed(clock)
        for pause_s in (60.0, 120.0, 240.0, 480.0):
            assert await refusals.enter(clock.sleep) is True
            assert clock.slept_s[-1] == pause_s
            refusals.failed(is_probe=True)
        with pytest.raises(Suspended) as over:  # 900 s were waited
            await refusals.enter(clock.sleep)
        assert (over.value.since_s, over.value.again_s) == (900.0, LONGEST_LIMIT_PAUSE_S)
        clock.now_s += LONGEST_LIMIT_PAUSE_S
        assert await refusals.enter(clock.sleep) is True, "patience is over, but somebody still finds out"
        with pytest.raises(Suspended):
            await refusals.enter(clock.sleep)
        assert refusals.answered(clock(), is_probe=True) is True
        assert await refusals.enter(clock.sleep) is False
        assert self.closed(clock)._until_s == clock() + 60.0, "and the next time begins anew"

    async def test_all_wait_for_the_one_that_finds_out(self, clock: Clock) -> None:
        refusals = self.closed(clock)
        assert await refusals.enter(clock.sleep) is True
        waiting = [asyncio.create_task(refusals.enter(clock.sleep)) for _ in range(20)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        refusals.answered(clock(), is_probe=True)
        assert await asyncio.wait_for(asyncio.gather(*waiting), 300) == [False] * 20

    async def test_one_that_finds_out_and_is_cancelled_leaves_the_way_to_another(self, clock: Clock) -> None:
        refusals = self.closed(clock)
        assert await refusals.enter(clock.sleep) is True
        waiting = asyncio.create_task(refusals.enter(clock.sleep))
        await asyncio.sleep(0)
        refusals.abandoned()
        assert await asyncio.wait_for(waiting, 300) is True

    async def test_late_words_of_requests_under_way_change_nothing(self, clock: Clock) -> None:
        clock.now_s = 10.0
        refusals = self.closed(clock)
        assert refusals.answered(sent_at_s=9.0) is False and refusals.open
        assert refusals.failed() is None
        await refusals.enter(clock.sleep)
        assert clock.slept_s == [60.0]

    async def test_a_time_that_is_named_holds_for_all_from_the_first_word(self, clock: Clock) -> None:
        refusals = limit(5, clock)
        assert refusals.failed(named_s=7.0) == 7.0
        assert await refusals.enter(clock.sleep) is True and clock.slept_s == [7.0]
        for _ in range(40):
            if refusals.failed(is_probe=True, named_s=0.0) is None:
                break
            try:
                await refusals.enter(clock.sleep)
            except Suspended:
                break
        else:
            raise AssertionError("a service that names no time at all is asked for ever")

    async def test_a_longer_time_than_is_waited_fails_at_once(self, clock: Clock) -> None:
        refusals = limit(5, clock)
        refusals.failed(named_s=3600.0)
        with pytest.raises(Suspended) as over:
            await refusals.enter(clock.sleep)
        assert over.value.again_s == 3600.0 and clock.slept_s == []

    async def test_what_others_were_told_is_heeded(self, clock: Clock) -> None:
        told_s, asked = [30.0], []

        async def observe() -> float:
            asked.append(clock())
            return told_s[0] - clock()

        refusals = limit(5, clock)
        assert await refusals.enter(clock.sleep, observe) is True
        assert clock.slept_s == [10.0] * 3 and asked == [0.0, 10.0, 20.0]
        refusals.answered(clock(), is_probe=True)
        assert await refusals.enter(clock.sleep, observe) is False and clock.slept_s == [10.0] * 3

    async def test_none_passes_while_it_is_asked_what_others_were_told(self, clock: Clock) -> None:
        """A pause that stands when a run starts holds for all requests, not for the first alone."""
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        refusals = limit(5, clock)
        waiting = [asyncio.create_task(refusals.enter(clock.sleep, lambda: answer)) for _ in range(20)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        answer.set_result(3600.0)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, Suspended) for one in found)

    async def test_what_another_found_over_is_over(self, clock: Clock) -> None:
        refusals = self.closed(clock, pause_s=600.0)

        async def observe() -> float:
            return 45.0 - clock()  # the others' word: another process was answered then

        assert await refusals.enter(clock.sleep, observe) is True and clock() == 50.0


class TestPauses:
    @given(
        st.lists(st.tuples(st.floats(0, 100), st.floats(0, 200)), max_size=30),
    )
    def test_the_sum_is_the_time_in_which_nothing_was_asked(self, told: list[tuple[float, float]]) -> None:
        now_s, paused, covered = 1000.0, Paused(), []
        for after_s, seconds in told:
            now_s += after_s
            paused = pause(paused, seconds, now_s)
            if seconds <= 0:
                covered = [(begin, min(end, now_s)) for begin, end in covered]
            else:
                covered.append((now_s, now_s + seconds))
        edges = sorted({edge for span in covered for edge in span})
        union = sum(
            right - left
            for left, right in itertools.pairwise(edges)
            if any(begin <= left and right <= end for begin, end in covered)
        )
        assert paused.total_s == pytest.approx(union, abs=1e-6)
        assert paused.times <= len(told) and (paused.times > 0) == any(seconds > 0 for _, seconds in told)

    def test_a_clock_that_was_set_back_does_not_stop_us_for_years(self) -> None:
        before = pause(Paused(), 60.0, 4e9)
        assert paused_s(before, 1e9) == 0.0
        assert paused_s(pause(before, 60.0, 1e9), 1e9 + 10) == 50.0

    @pytest.mark.parametrize("seconds", [3_600_000.0, 4e8])
    def test_an_odd_time_stops_nobody_for_more_than_an_hour(self, clock: Clock, seconds: float) -> None:
        paused = pause(Paused(), seconds, 1e9)
        assert [paused_s(paused, 1e9 + after_s) for after_s in (0, 3599, 3601)] == [3600, 1, 0]
        assert paused.total_s == 3600
        refusals = limit(5, clock)
        assert refusals.failed(named_s=seconds) == 3600

    @pytest.mark.parametrize(
        "make", [lambda path, clock: BudgetFile(path, clock), lambda _, clock: ProcessRateBudget(clock)]
    )
    def test_a_rate_budget_passes_them_on(self, tmp_path: Path, clock: Clock, make: Callable[..., Any]) -> None:
        clock.now_s = 1000.0
        rate_budget = make(tmp_path / "budgets.sqlite", clock)
        assert rate_budget.pauses() == {} and rate_budget.paused_s("mapillary") == 0.0
        rate_budget.pause("mapillary", 60.0)
        clock.now_s += 10.0
        rate_budget.pause("mapillary", 60.0)
        assert rate_budget.paused_s("mapillary") == 60.0 and rate_budget.paused_s("stac") == 0.0
        rate_budget.pause("mapillary", 0.0)
        assert rate_budget.paused_s("mapillary") == 0.0
        assert rate_budget.pauses() == {"mapillary": Paused(1010.0, 1, 10.0)}


def mapillary(
    url: str, sleep: Callable[[float], Awaitable[None]], rate_budget: Any = None, **settings: Any
) -> Mapillary:
    services = ServicesSettings.model_validate({"mapillary": {"base_url": url, **settings}})
    connections = connect(services, {})
    connections = connections.sharing(rate_budget) if rate_budget is not None else connections
    return Mapillary(connections.street_view["mapillary"], sleep=sleep, uniform=lambda _, high: high)


class TestOverTheSocket:
    """Mapillary's own words: 403, code 4, no Retry-After."""

    async def test_the_limits_end_is_waited_for_and_everything_is_answered(self, server: Any, clock: Clock) -> None:
        refused = 0

        def answers(asked: Any) -> tuple[int, Any]:
            nonlocal refused
            if clock.now_s < 150:
                refused += 1
                return 403, LIMIT
            return 200, {"id": "7"}

        server.answers = answers
        client = mapillary(server.url, clock.sleep, max_concurrency=4)
        rows = await asyncio.gather(*(client.image("7", ("id",)) for _ in range(30)))
        assert len(rows) == 30
        # Five in a row or those under way, then single ones after a minute and after two more.
        assert 5 <= refused <= 5 + 4 + 2 and len(server.asked) == 30 + refused

    async def test_patience_has_an_end_and_the_rest_is_not_asked(self, server: Any, clock: Clock) -> None:
        server.answers = lambda asked: (403, LIMIT)
        client = mapillary(server.url, clock.sleep, max_concurrency=2, limit_patience_s=100)
        errors = await asyncio.gather(*(client.image("7", ("id",)) for _ in range(30)), return_exceptions=True)
        assert all(isinstance(error, ServiceError) and error.kind == "rate_limit" for error in errors)
        assert all("services.mapillary.limit_patience_s=100" in str(error) for error in errors)
        assert any("Application request limit reached" in str(error) for error in errors)
        assert sum("not asked" in str(error) for error in errors) >= 20 and len(server.asked) <= 8

    async def test_a_limit_without_patience_is_left_to_the_next_run(self, server: Any, clock: Clock) -> None:
        server.answers = lambda asked: (403, LIMIT)
        client = mapillary(server.url, clock.sleep, limit_patience_s=0, max_attempts=3)
        with pytest.raises(ServiceError) as caught:
            await client.image("7", ("id",))
        assert (caught.value.status, caught.value.attempts, len(server.asked)) == (403, 3, 3)

    async def test_one_that_is_always_refused_does_not_hold_up_the_others_for_ever(
        self, server: Any, reply: Any
    ) -> None:
        """As a service would that refuses one question only, and names a time."""

        async def no_sleep(_: float) -> None:
            await asyncio.sleep(0)

        async def ask_others() -> None:
            while True:
                await client.image("7", ("id",))

        server.answers = lambda asked: (
            reply(429, headers={"Retry-After": "1"}) if asked.target.startswith("/13") else (200, {"id": "7"})
        )
        client = mapillary(server.url, no_sleep, max_attempts=4)
        others = asyncio.create_task(ask_others())
        try:
            with pytest.raises(ServiceError) as caught:
                await asyncio.wait_for(client.image("13", ("id",)), 300)
        finally:
            others.cancel()
        refused = sum(asked.target.startswith("/13") for asked in server.asked)
        assert caught.value.kind == "rate_limit" and 4 <= refused <= 30

    async def test_the_files_host_is_not_held_by_the_apis_limit(self, server: Any, clock: Clock) -> None:
        def answers(asked: Any) -> tuple[int, Any]:
            return (403, LIMIT) if asked.target.startswith("/7") else (200, {})

        server.answers = answers
        client = mapillary(server.url, clock.sleep, limit_patience_s=0, max_attempts=2)
        with pytest.raises(ServiceError):
            await client.image("7", ("id",))
        with pytest.raises(ServiceError) as caught:
            await client.fetch(f"{server.url}/p.jpg?oe=1")
        assert caught.value.kind == "bad_response", "it was asked, and what came is no picture"

    def test_another_process_of_the_lake_waits_as_well(self, tmp_path: Path) -> None:
        rate_budget = BudgetFile(tmp_path / "budgets.sqlite")
        asked: list[bytes] = []
        slept_s: list[float] = []

        async def sleep(seconds: float) -> None:
            slept_s.append(seconds)

        async def run(status: int, body: Any) -> Exception | None:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                data = json.dumps(body).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode() + data)
                writer.close()

            listener = await asyncio.start_server(answer, "127.0.0.1", port)
            try:
                client = mapillary(f"http://127.0.0.1:{port}", sleep, rate_budget, max_attempts=2, limit_patience_s=100)
                await client.image("7", ("id",))
                return None
            except ServiceError as error:
                return error
            finally:
                listener.close()

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        assert "limit is reached" in str(asyncio.run(run(403, LIMIT)))
        asking.submit(lambda: None).result()  # the rate_budget was told in the background
        before = len(asked)
        name = f"mapillary 127.0.0.1:{port}"
        told = rate_budget.pauses()[name]
        assert told.times == 1 and told.total_s > 60
        # Another event loop knows nothing of the first one: as another process, it has only the rate_budget.
        assert "not asked" in str(asyncio.run(run(200, {"id": "7"}))) and len(asked) == before
        rate_budget.pause(name, 0.0)
        assert asyncio.run(run(200, {"id": "7"})) is None and len(asked) == before + 1


def test_a_pause_is_never_said_to_last_zero_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is about to end, or over by the time it is looked at, is said as what it is."""
    budget = BudgetFile(tmp_path / "budgets.sqlite")
    clock = iter(range(0, 1000, 100))
    pauses = Pauses(budget, clock=lambda: float(next(clock)))
    for name, seconds in (("mapillary a", 0.3), ("stac b", 0.0)):
        budget.pause(name, seconds)
    pauses.log_new()
    assert "mapillary says" in caplog.text and "for 0 s" not in caplog.text
    assert "for 1 s" in caplog.text


class LeakyBucket:
    """A gateway that takes a request every `interval_s` and refuses the others, as nginx's limit_req does."""

    def __init__(self, interval_s: float, status: int, reply: Any) -> None:
        self._interval_s, self._status, self._reply, self._next_s = interval_s, status, reply, 0.0
        self.refused = 0

    def __call__(self, asked: Any) -> Any:
        now_s = time.monotonic()
        if now_s < self._next_s:
            self.refused += 1
            page = b"<html><center><h1>Service Temporarily Unavailable</h1></center>nginx</html>"
            return self._reply(self._status, page, "text/html")
        self._next_s = now_s + self._interval_s
        return 200, {"ok": True}


@pytest.mark.parametrize("status", [503, 429])
async def test_a_gateway_that_names_neither_limit_nor_time_is_asked_at_its_pace(
    server: Any, reply: Any, status: int
) -> None:
    bucket = LeakyBucket(0.03, status, reply)
    server.answers = bucket
    client = server.client(HttpClient, limit_patience_s=60, backoff_s=0.05)
    client._sleep = asyncio.sleep
    await client.request_json("GET", "/first")
    answers = await asyncio.gather(*(client.request_json("GET", f"/{number}") for number in range(20)))
    assert [value for value, _ in answers] == [{"ok": True}] * 20
    assert bucket.refused < 100, "it is not hammered"


async def test_a_page_before_any_answer_is_an_outage_that_names_the_pace(server: Any, reply: Any) -> None:
    """Nothing tells a limit that is used up from a server that is down: the line names what to change."""
    server.answers = lambda asked: reply(503, b"<html>Service Temporarily Unavailable</html>", "text/html")
    client = server.client(HttpClient, max_attempts=2, backoff_s=0)
    with pytest.raises(ServiceError) as caught:
        await client.request_json("GET", "/first")
    assert caught.value.kind == "outage" and str(caught.value).count("requests_per_minute") == 1
