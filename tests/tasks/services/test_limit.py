"""Budgets of requests: never exceeded, by however many processes, over restarts and kills."""

import asyncio
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import GeofixError
from schemas.settings.endpoint import Allowance
from tasks.services.rate_budget import (
    DAY_S,
    MOST_AT_ONCE,
    BudgetFile,
    BudgetState,
    ProcessRateBudget,
    RateLimiter,
    UsedUp,
    gap_s,
    give_back,
    grant,
    rate_limiter_of,
)

NOON = 20_000 * DAY_S + DAY_S / 2
ROOT = Path(__file__).resolve().parents[3]


def moments(lease, now_s: float) -> list[float]:
    return [now_s + lease.wait_s + i * lease.gap_s for i in range(lease.count)]


class TestGrant:
    def test_one_a_second_is_one_a_second(self):
        minute = Allowance(per_minute=60)
        first, state = grant(BudgetState(), minute, 5, NOON)
        assert (first.count, first.wait_s) == (1, 0.0)
        second, state = grant(state, minute, 5, NOON)
        assert second.count == 0 and 0.7 < second.again_s < 0.8  # a moment is given away a quarter second ahead
        third, _ = grant(state, minute, 5, NOON + 1.0)
        assert third.count == 1 and third.wait_s == pytest.approx(61 / 60 - 1.0)

    @given(
        st.integers(1, 6000),
        st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200)), min_size=1, max_size=80),
    )
    def test_no_minute_holds_more_than_allowed_and_the_pace_is_over_95_percent(self, per_minute, asks):
        allowance, state, now_s = Allowance(per_minute=per_minute), BudgetState(), NOON
        given_s: list[float] = []
        for pause_s, want in asks:
            now_s += pause_s
            lease, state = grant(state, allowance, want, now_s)
            assert lease.count <= min(want, MOST_AT_ONCE)
            assert lease.count > 0 or lease.again_s > 0
            given_s += moments(lease, now_s)
        assert given_s == sorted(given_s)
        # A permit may be used up to a second late: whatever 61 seconds hold could fall into one minute.
        for start in given_s:
            assert sum(1 for moment in given_s if start <= moment < start + 61 - 1e-6) <= per_minute
        assert gap_s(allowance) * per_minute == pytest.approx(61)  # 60 of 61: 98.4 %

    @given(st.integers(1, 300), st.lists(st.tuples(st.floats(0, 20_000), st.integers(1, 100)), max_size=80))
    def test_no_day_holds_more_than_allowed_and_all_of_it_can_be_had(self, per_day, asks):
        allowance, state, now_s = Allowance(per_day=per_day), BudgetState(), NOON
        by_day: dict[int, int] = {}
        for pause_s, want in asks:
            now_s += pause_s
            lease, state = grant(state, allowance, want, now_s)
            day = int(now_s // DAY_S)
            had = by_day.get(day, 0)
            assert lease.count == min(want, MOST_AT_ONCE, per_day - had)
            assert lease.used_up == (lease.count == 0)
            if lease.used_up:
                assert now_s + lease.again_s == pytest.approx((day + 1) * DAY_S)
            by_day[day] = had + lease.count

    def test_what_comes_back_can_be_had_again_on_the_same_day_only(self):
        _, state = grant(BudgetState(), Allowance(per_day=10), 6, NOON)
        assert give_back(state, state.day, 4).used == 2
        assert give_back(state, state.day - 1, 4).used == 6
        assert give_back(state, state.day, 400).used == 0

    def test_a_clock_that_was_set_back_does_not_stop_everything(self):
        _, state = grant(BudgetState(), Allowance(per_minute=600), 1, NOON + 3600)
        lease, _ = grant(state, Allowance(per_minute=600), 1, NOON)
        assert lease.count == 1 and lease.wait_s == 0

    def test_nothing_is_held_far_ahead(self):
        """What a killed process took with it: a quarter second's worth, and never more than one lease."""
        lease, _ = grant(BudgetState(), Allowance(per_minute=600), 1000, NOON)
        assert moments(lease, NOON)[-1] <= NOON + 0.25
        lease, _ = grant(BudgetState(), Allowance(per_day=10_000), 1000, NOON)
        assert lease.count == MOST_AT_ONCE


class TestBudgetFile:
    def test_the_count_outlives_its_process_and_ends_with_the_day(self, tmp_path):
        now = [NOON]
        day = Allowance(per_day=100)
        first = BudgetFile(tmp_path / ".state" / "budgets.sqlite", clock=lambda: now[0])
        assert first.lease("tiles", day, 60).count == 60
        again = BudgetFile(first.path, clock=lambda: now[0])
        assert again.lease("tiles", day, 60).count == 40
        assert again.lease("tiles", day, 1).used_up and first.lease("tiles", day, 1).used_up
        assert again.lease("others", day, 1).count == 1
        again.give_back("tiles", int(NOON // DAY_S), 3)
        assert first.lease("tiles", day, 60).count == 3
        now[0] += DAY_S / 2
        assert first.lease("tiles", day, 60).count == 60

    def test_it_travels_to_other_processes(self, tmp_path):
        rate_budget = BudgetFile(tmp_path / "b.sqlite")
        assert rate_budget.lease("x", Allowance(per_day=9), 4).count == 4
        assert pickle.loads(pickle.dumps(rate_budget)).lease("x", Allowance(per_day=9), 9).count == 5

    def test_a_damaged_file_is_one_clear_line(self, tmp_path):
        file = tmp_path / "b.sqlite"
        file.write_bytes(b"not a database at all" * 100)
        with pytest.raises(GeofixError, match="delete it") as caught:
            BudgetFile(file).lease("x", Allowance(per_day=9), 4)
        assert str(file) in str(caught.value) and "\n" not in str(caught.value)

    @pytest.mark.whole
    def test_many_processes_share_it_to_the_unit(self, tmp_path):
        """Each takes what it can; together they get the day's budget and a pace, neither more."""
        script = """
            import sys, time
            from schemas.settings.endpoint import Allowance
            from tasks.services.rate_budget import BudgetFile
            rate_budget, taken, paced, until = BudgetFile(sys.argv[1]), 0, 0, time.monotonic() + 1.0
            while True:
                lease = rate_budget.lease("day", Allowance(per_day=1500), 7)
                taken += lease.count
                if lease.used_up: break
            while time.monotonic() < until:
                lease = rate_budget.lease("minute", Allowance(per_minute=6000), 7)
                paced += lease.count
                time.sleep(min(lease.again_s, 0.05))
            print(taken, paced)
        """
        start_s = time.monotonic()
        workers = [self.python(script, tmp_path / "b.sqlite") for _ in range(4)]
        counts = [tuple(map(int, worker.communicate(timeout=900)[0].split())) for worker in workers]
        assert all(worker.returncode == 0 for worker in workers)
        assert sum(day for day, _ in counts) == 1500
        assert 0 < sum(paced for _, paced in counts) <= (time.monotonic() - start_s + 0.25 + 0.75) * 100 + 1

    def test_a_killed_holder_loses_one_lease_at_most(self, tmp_path):
        script = """
            import sys
            from schemas.settings.endpoint import Allowance
            from tasks.services.rate_budget import BudgetFile
            rate_budget = BudgetFile(sys.argv[1])
            while True:
                print(rate_budget.lease("day", Allowance(per_day=10**9), 8).count, flush=True)
        """
        file, used, told = tmp_path / "b.sqlite", 0, 0
        for _ in range(2):
            worker = self.python(script, file)
            assert worker.stdout is not None
            for _ in range(20):
                assert int(worker.stdout.readline()) == 8
            worker.kill()
            told += 8 * 20 + 8 * len(worker.stdout.read().split())
            worker.wait()
            used = BudgetFile(file).state("day").used
            assert told <= used <= told + 8
            told = used
        assert BudgetFile(file).lease("day", Allowance(per_day=used + 5), 64).count == 5

    def python(self, script: str, file: Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", textwrap.dedent(script), str(file)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


class TestPermits:
    async def test_all_that_wait_are_served_by_few_leases(self):
        class Counting(ProcessRateBudget):
            leases = 0

            def lease(self, *args):
                self.leases += 1
                time.sleep(0.02)  # as far as another node
                return super().lease(*args)

        rate_budget = Counting()
        permits = RateLimiter(rate_budget, "x", Allowance(per_day=200))
        await asyncio.gather(*(permits.acquire() for _ in range(200)))
        assert rate_budget.leases <= 200 / MOST_AT_ONCE + 4
        with pytest.raises(UsedUp) as caught:
            await permits.acquire()
        assert caught.value.renews_at.strftime("%H:%M:%S") == "00:00:00"
        asked = rate_budget.leases
        for _ in range(50):
            with pytest.raises(UsedUp):
                await permits.acquire()
        assert rate_budget.leases == asked  # known: no need to ask again

    async def test_one_that_gives_up_does_not_take_the_others_permits(self):
        class Slow(ProcessRateBudget):
            def lease(self, *args):
                time.sleep(0.1)
                return super().lease(*args)

        permits = RateLimiter(Slow(), "x", Allowance(per_day=3))
        first, *rest = (asyncio.create_task(permits.acquire()) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*rest)
        with pytest.raises(asyncio.CancelledError):
            await first

    async def test_a_permit_past_its_time_goes_back_to_the_days_count(self):
        class Generous(ProcessRateBudget):
            def lease(self, bucket, allowance, want):
                return super().lease(bucket, allowance, 4)

            def used(self) -> int:
                return self.state("x").used

        now = [0.0]
        rate_budget = Generous(clock=lambda: NOON)
        permits = RateLimiter(rate_budget, "x", Allowance(per_day=10), clock=lambda: now[0])
        await permits.acquire()
        assert rate_budget.used() == 4
        now[0] = 5.0
        await permits.acquire()  # three are stale, four more are leased
        for _ in range(500):
            if rate_budget.used() == 5:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{rate_budget.used()} are counted; two were used, three are held")

    def test_clients_of_one_process_share_their_permits(self):
        minute = Allowance(per_minute=60)
        assert rate_limiter_of(None, "a", minute) is rate_limiter_of(None, "a", minute)
        assert rate_limiter_of(None, "a", minute) is not rate_limiter_of(None, "b", minute)
