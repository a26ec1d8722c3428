"""How many requests are sent at once, and how few while a service is out."""

import asyncio
import heapq
import random
from collections.abc import Callable

import pytest

from tasks.services.errors import ServiceError
from tasks.services.http import HttpClient
from tasks.services.limits import START, Breaker, ConcurrencyLimiter, Suspended, host_limits


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SimulatedHost:
    """Answers requests one after the other in simulated time; there is always somebody waiting for a place."""

    def __init__(self, most: int, lines: int | None = None) -> None:
        self.clock, self.chance = Clock(), random.Random(1)
        self.gate = ConcurrencyLimiter(most, self.clock)
        self.free_at_s = [0.0] * (lines or 0)  # of each of its lines; without them it takes all at once
        self.sent: list[tuple[float, int, float]] = []
        self.number = 0

    def run(self, seconds: float, takes_s: Callable[[random.Random], float]) -> float:
        """Answers a second, when each takes so long, and waits for a free line before."""
        begin_s, answers = self.clock.now_s, 0
        while self.clock.now_s < begin_s + seconds:
            while self.gate.inside < int(self.gate.limit):
                self.gate.inside += 1
                self.number += 1
                heapq.heappush(self.sent, (self._ends_s(takes_s(self.chance)), self.number, self.clock.now_s))
            self.clock.now_s, _, sent_at_s = heapq.heappop(self.sent)
            self.gate.answered(self.clock.now_s - sent_at_s)
            self.gate.leave()
            answers += 1
        return answers / (self.clock.now_s - begin_s)

    def _ends_s(self, takes_s: float) -> float:
        if not self.free_at_s:
            return self.clock.now_s + takes_s
        end_s = max(self.clock.now_s, heapq.heappop(self.free_at_s)) + takes_s
        heapq.heappush(self.free_at_s, end_s)
        return end_s


class TestGate:
    def test_it_doubles_in_a_round_trip_while_latency_holds_and_never_goes_over_its_ceiling(self):
        host = SimulatedHost(100)
        assert host.gate.limit == START
        host.run(1.9, lambda _: 1.0)  # the first answers say how quick it is
        host.run(1.0, lambda _: 1.0)
        assert 2 * START <= host.gate.limit <= 2 * START + 4
        host.run(10.0, lambda _: 1.0)
        assert host.gate.limit == 100
        assert ConcurrencyLimiter(4).limit == 4

    @pytest.mark.parametrize("lines", [8, 16])
    @pytest.mark.parametrize("spread_s", [0.0, 0.3])
    def test_requests_that_would_only_pile_up_are_not_sent(self, lines: int, spread_s: float):
        host = SimulatedHost(500, lines)
        host.run(60, lambda chance: 0.5 + chance.uniform(-spread_s, spread_s))
        per_s = host.run(300, lambda chance: 0.5 + chance.uniform(-spread_s, spread_s))
        assert per_s > 0.97 * lines / 0.5, "and as many are answered"
        assert lines <= host.gate.limit <= 4 * lines

    def test_a_host_that_loses_lines_is_sent_fewer(self):
        host = SimulatedHost(64, 32)
        host.run(60, lambda _: 0.5)
        assert host.gate.limit == 64
        del host.free_at_s[4:]
        per_s = host.run(600, lambda _: 0.5)
        assert per_s > 0.95 * 4 / 0.5 and host.gate.limit < 20

    @pytest.mark.parametrize("before_s", [0.01, 0.2])
    def test_a_host_that_became_slower_by_itself_is_asked_as_much_as_before(self, before_s: float):
        host = SimulatedHost(64)
        host.run(10, lambda _: before_s)
        assert host.gate.limit == 64
        assert host.run(100, lambda _: 1.0) > 0.93 * 64
        assert host.gate.limit == 64

    @pytest.mark.parametrize(
        ("takes_s", "mean_s"),
        [
            (lambda chance: chance.choice([0.05, 0.6, 0.6]), 1.25 / 3),
            (lambda chance: chance.lognormvariate(-0.5, 1.0), 1.0),
        ],
        ids=["two kinds", "long tail"],
    )
    def test_answers_that_differ_much_are_no_slowness(self, takes_s, mean_s: float):
        assert SimulatedHost(64).run(300, takes_s) > 0.95 * 64 / mean_s

    def test_however_slow_a_few_are_sent(self):
        host = SimulatedHost(64, 1)
        host.run(20, lambda _: 0.01)
        host.run(2000, lambda _: 1.0)
        assert 4 <= host.gate.limit < 12
        narrow = SimulatedHost(2, 1)  # a ceiling below that is a ceiling
        narrow.run(10, lambda _: 0.01)
        narrow.run(100, lambda _: 1.0)
        assert narrow.gate.limit == 2

    def test_refusals_halve_it_once_a_round_trip_and_it_recovers_by_one(self):
        host = SimulatedHost(64)
        host.run(10.0, lambda _: 1.0)
        gate, clock, now_s = host.gate, host.clock, host.clock.now_s
        assert gate.limit == 64
        for _ in range(30):
            gate.too_much(sent_at_s=now_s - 0.5)
        assert gate.limit == 32
        clock.now_s = now_s + 1.0
        gate.too_much(sent_at_s=now_s + 0.5)
        assert gate.limit == 16
        while gate.inside > 16:
            gate.leave()
        for _ in range(16):
            gate.answered(1.0)
        assert 16.5 < gate.limit <= 17.01
        for sent_at_s in range(int(now_s) + 2, int(now_s) + 20):
            clock.now_s = sent_at_s + 0.5
            gate.too_much(sent_at_s)
        assert gate.limit == 1

    async def test_an_idle_gate_learns_nothing(self):
        gate = ConcurrencyLimiter(64)
        await gate.enter()
        for _ in range(100):
            gate.answered(0.01)
        assert gate.limit == START

    async def test_whoever_gives_up_waiting_leaves_no_trace(self):
        gate = ConcurrencyLimiter(1)
        await gate.enter()
        waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.leave()  # the place goes to the second, the first is gone
        await asyncio.sleep(0)
        await asyncio.wait_for(waiting[1], 300)
        waiting[2].cancel()
        gate.leave()
        await asyncio.sleep(0)
        assert gate.inside == 0
        await asyncio.wait_for(gate.enter(), 300)

    async def test_requests_at_once_follow_the_gate(self, server, reply):
        server.says(reply(delay_s=0.02))
        client = server.client(HttpClient, max_concurrency=3)
        await asyncio.gather(*(client.get("/x") for _ in range(20)))
        assert len(server.asked) == 20 and server.most_at_once <= 3

    async def test_a_rate_limit_cuts_the_gate_of_its_host_only(self, server, reply):
        server.says(reply(429), reply())
        client = server.client(HttpClient)
        await client.get("/x")
        gate = host_limits("mapillary", client.endpoint, "", server.url).concurrency
        assert gate.limit == START / 2 and gate.inside == 0
        assert host_limits("mapillary", client.endpoint, "picture", server.url).concurrency.limit == START


class TestBreaker:
    def breaker(self, clock: Clock, patience_s: float = 100.0) -> Breaker:
        return Breaker(3, 2.0, 5.0, patience_s, only_if_answered=True, clock=clock)

    async def test_it_opens_after_outages_in_a_row_only(self):
        clock = Clock()
        breaker = self.breaker(clock)
        for _ in range(10):
            breaker.failed()
            breaker.failed()
            breaker.answered(clock())
        assert not breaker.open
        for _ in range(3):
            assert await breaker.enter() is False
            breaker.failed()
        assert breaker.open

    async def test_one_request_at_a_time_finds_out_after_growing_pauses(self):
        clock = Clock()
        breaker = self.breaker(clock, patience_s=0.0)
        breaker.answered(clock())
        for _ in range(3):
            breaker.failed()
        for pause_s in (2.0, 4.0, 5.0, 5.0):
            clock.now_s += pause_s - 0.01
            with pytest.raises(Suspended):
                await breaker.enter()
            clock.now_s += 0.01
            assert await breaker.enter() is True
            with pytest.raises(Suspended):
                await breaker.enter()  # another is finding out
            breaker.failed()  # late word of one that was under way: changes nothing
            assert breaker.open
            breaker.failed(is_probe=True)
        clock.now_s += 5.0
        assert await breaker.enter() is True
        breaker.answered(clock(), is_probe=True)
        assert await breaker.enter() is False and not breaker.open

    async def test_those_that_wait_pass_when_the_service_is_back(self):
        clock = Clock()
        breaker = self.breaker(clock)
        breaker.answered(clock())
        for _ in range(3):
            breaker.failed()
        clock.now_s = 2.0
        assert await breaker.enter() is True
        waiting = [asyncio.create_task(breaker.enter()) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        breaker.answered(clock())
        assert await asyncio.wait_for(asyncio.gather(*waiting), 300) == [False] * 20

    async def test_a_cancelled_probe_leaves_the_way_to_another(self):
        clock = Clock()
        breaker = self.breaker(clock)
        breaker.answered(clock())
        for _ in range(3):
            breaker.failed()
        clock.now_s = 2.0
        assert await breaker.enter() is True
        waiting = asyncio.create_task(breaker.enter())
        await asyncio.sleep(0)
        breaker.abandoned()
        assert await asyncio.wait_for(waiting, 300) is True

    async def test_an_outage_costs_few_requests_and_ends_by_itself(self, server, reply):
        server.says(reply())
        settings = {"outage_after": 4, "outage_pause_s": 0.05, "max_wait_s": 0.2, "outage_patience_s": 60}
        client = server.client(HttpClient, max_attempts=20, max_concurrency=2, **settings)
        await client.get("/x")
        server.asked.clear()
        server.says(*[reply(503)] * 8, reply())
        answers = await asyncio.gather(*(client.get("/x") for _ in range(30)))
        assert len(answers) == 30 and len(server.asked) == 30 + 8

    async def test_patience_has_an_end(self, server, reply):
        server.says(reply())
        client = server.client(HttpClient, max_attempts=1, outage_after=2, outage_pause_s=30, outage_patience_s=0.05)
        await client.get("/x")
        server.says(reply(503))
        server.asked.clear()
        failures = []
        for _ in range(6):
            with pytest.raises(ServiceError) as caught:
                await client.get("/x?access_token=hidden")
            failures.append(caught.value)
        assert len(server.asked) == 2 and {error.kind for error in failures} == {"outage"}
        assert "not asked" in str(failures[-1]) and "hidden" not in str(failures[-1])
        said = str(failures[-1])
        assert "HTTP 503" in str(failures[0]) and said.index("HTTP 503") < said.index("not asked") < said.rindex("/x")
        assert " 0 s" not in said

    async def test_a_service_that_dies_is_waited_for_once_by_all(self):
        """Not by each request anew: twenty thousand of them would take days."""
        clock = Clock()
        slept_s: list[float] = []

        async def sleep(seconds: float) -> None:
            slept_s.append(seconds)
            clock.now_s += seconds

        breaker = self.breaker(clock, patience_s=10.0)
        breaker.answered(clock())
        for _ in range(3):
            breaker.failed()
        passed = 0
        for _ in range(1000):
            try:
                assert await breaker.enter(sleep) is True
            except Suspended:
                continue
            passed += 1
            breaker.failed(is_probe=True)
        assert passed == 2 and slept_s == [2.0, 4.0], "then the next pause would be longer than patience"

    async def test_pages_in_place_of_answers_open_it(self, server, reply):
        server.says(reply())
        client = server.client(HttpClient, max_attempts=2, outage_after=3, outage_pause_s=30, outage_patience_s=0)
        await client.get("/x")
        server.says(reply(200, b"<html>sorry</html>", "text/html"))
        server.asked.clear()
        for _ in range(6):
            with pytest.raises(ServiceError) as caught:
                await client.get("/x")
            assert caught.value.kind == "outage" and caught.value.retryable
        assert len(server.asked) == 3 and "not asked" in str(caught.value)

    async def test_a_wrong_address_is_not_waited_for(self, server):
        client = server.client(
            HttpClient, base_url="http://127.0.0.1:9", max_attempts=2, outage_after=3, outage_pause_s=30
        )
        for _ in range(4):
            with pytest.raises(ServiceError) as caught:
                await asyncio.wait_for(client.get("/x"), 300)
            assert caught.value.kind == "outage" and "cannot be reached (ClientConnectorError)" in str(caught.value)

    async def test_refusals_are_no_outage(self, server, reply):
        server.says(reply(404))
        client = server.client(HttpClient, outage_after=2)
        for _ in range(8):
            with pytest.raises(ServiceError) as caught:
                await client.get("/x")
            assert caught.value.kind == "not_found"
        assert len(server.asked) == 8
