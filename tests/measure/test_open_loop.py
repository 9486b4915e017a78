"""The open loop against queues whose behaviour is known."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from mlflow_ngraph.measure.open_loop import HEAD_START_NS, NEVER, Served, schedule, serve

MS = 1_000_000


class SimulatedClock:
    """Time that passes only where somebody says so."""

    def __init__(self, oversleeps_ns: int = 0) -> None:
        self.time = 0
        self._oversleeps = oversleeps_ns

    def now(self) -> int:
        return self.time

    def wait_until(self, moment: int) -> None:
        if moment > self.time:
            self.time = moment + self._oversleeps

    def spend(self, nanoseconds: int) -> Callable[[], None]:
        """An engine that takes so long."""

        def call() -> None:
            self.time += nanoseconds

        return call


def simulated(rate: float, seconds: float, service_ns: int, *, process: str = "poisson", limit: float = 10.0) -> Served:
    clock = SimulatedClock()
    due = schedule(rate, seconds, process, [1])  # type: ignore[arg-type]
    return serve([clock.spend(service_ns)], due, limit * seconds, clock)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.85])
def test_the_mean_waiting_time_is_that_of_an_m_d_1_queue(load: float) -> None:
    service_s = 1e-3
    served = simulated(load / service_s, 400.0, MS)
    expected = load * service_s / (2 * (1 - load))  # Pollaczek and Khinchine
    assert np.mean(served.waited_ns) / 1e9 == pytest.approx(expected, rel=0.06)
    assert set(served.served_ns) == {MS}


def test_uniform_arrivals_below_the_capacity_never_wait() -> None:
    served = simulated(900, 10, MS, process="uniform")
    assert max(served.waited_ns) == 0
    assert len(served.due_ns) == 9000
    assert set(np.diff(served.due_ns)) <= {1_111_111, 1_111_112, 1_111_110}


def test_latency_counts_from_the_moment_a_request_was_due() -> None:
    """An engine that hangs for a second keeps all waiting who come meanwhile, not the one request that it hangs in."""
    clock = SimulatedClock()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.time += 1000 * MS if calls == 100 else MS

    served = serve([call], schedule(100, 10, "uniform", [0]), 100, clock)
    waited = np.array(served.waited_ns)
    # Those of the second in which it hangs, and those who come while the queue gets shorter.
    assert (waited > 10 * MS).sum() == pytest.approx(110, abs=3)
    assert max(served.waited_ns) == pytest.approx(990 * MS, rel=0.01)


def test_a_request_is_delayed_by_what_it_waited_for_beside_others() -> None:
    # Requests that come to a free server, to a busy one, and one that is not served.
    served = Served(
        [5 * MS, 6 * MS, 100 * MS, 101 * MS], [MS, 2 * MS, 50 * MS, NEVER], [2 * MS, MS, 3 * MS, NEVER], 0, 1
    )
    delays, idle_s = served.delays()
    assert delays == [3 * MS, MS, 53 * MS]
    assert idle_s == pytest.approx((HEAD_START_NS + 5 * MS + 91 * MS) / 1e9)
    assert Served([0], [NEVER], [NEVER], 0, 2.0).delays()[0] == [2_000_000_000]


def test_what_cannot_be_served_in_time_is_given_up() -> None:
    served = simulated(2000, 5, MS, limit=1.2)
    done = np.array(served.served_ns) != NEVER
    assert done.sum() == pytest.approx(6000, abs=2), "in six seconds"
    assert np.array_equal(done, np.sort(done)[::-1]), "the first come are the served"
    assert all(wait == NEVER for wait, is_done in zip(served.waited_ns, done, strict=True) if not is_done)


def test_the_same_seed_gives_the_same_pattern_stretched_to_the_rate() -> None:
    slow, fast = schedule(100, 10, "poisson", [3, 1]), schedule(200, 5, "poisson", [3, 1])
    assert len(slow) == len(fast) == 1000
    np.testing.assert_allclose(slow / 2, fast, atol=1)
    assert not np.array_equal(slow, schedule(100, 10, "poisson", [3, 2]))
    assert np.all(np.diff(slow) >= 0)


def test_the_gaps_of_a_poisson_process_are_exponential() -> None:
    gaps = np.diff(schedule(1000, 100, "poisson", [7])) / 1e6
    assert gaps.mean() == pytest.approx(1.0, rel=0.01)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)
    assert (gaps > 3).mean() == pytest.approx(np.exp(-3), rel=0.1)


def test_several_servers_serve_at_the_same_time_and_in_order() -> None:
    lock, most, running, order = threading.Lock(), 0, 0, []
    others = threading.active_count()

    def call() -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
            order.append(threading.get_ident())
        time.sleep(0.004)
        with lock:
            running -= 1

    # Twice as many as they can serve: the last ones wait for hundreds of milliseconds, so turns out of order would show.
    served = serve([call] * 3, schedule(1500, 0.4, "poisson", [5]), 10)
    assert most == 3
    assert len(set(order)) == 3
    assert threading.get_ident() in order, "the calling thread is one of them"
    assert min(served.served_ns) >= 4 * MS
    starts = np.array(served.due_ns) + np.array(served.waited_ns)
    assert max(served.waited_ns) > 200 * MS
    early = np.maximum.accumulate(starts) - starts
    assert np.quantile(early, 0.9) < 50 * MS, "first come is first served, but for what the scheduler does in between"
    assert threading.active_count() <= others


def test_a_server_that_fails_ends_the_loop_for_all() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("as told")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="as told"):
        serve([call] * 2, schedule(1000, 1, "uniform", [0]), 5)
    assert calls < 10
    assert threading.active_count() == before
    assert gc.isenabled()


def test_nobody_collects_garbage_meanwhile() -> None:
    seen = []
    serve([lambda: seen.append(gc.isenabled())], schedule(100, 0.05, "uniform", [0]), 1)
    assert seen == [False] * 5
    assert gc.isenabled()
