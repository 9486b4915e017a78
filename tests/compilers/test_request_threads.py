"""Tasks of a crew really run at the same time, and a failure of one costs nobody else."""

from __future__ import annotations

import threading
import time

import pytest

from mlflow_ngraph.compilers.request_threads import RequestThreads


def test_all_tasks_are_in_flight_at_once() -> None:
    # Nobody passes the barrier unless all three are in it.
    barrier, done = threading.Barrier(3, timeout=10), []

    def task(name: int) -> None:
        barrier.wait()
        done.append(name)

    crew = RequestThreads([lambda name=name: task(name) for name in range(3)])  # type: ignore[misc]
    for _ in range(50):
        crew.run()
    crew.close()
    assert len(done) == 150
    assert all(set(done[start : start + 3]) == {0, 1, 2} for start in range(0, 150, 3)), "sets overlap"


def test_a_stream_goes_on_while_nobody_counts() -> None:
    often = threading.Semaphore(0)
    crew = RequestThreads([often.release, lambda: None])
    with crew.stream() as count:
        count()
        for _ in range(1000):
            assert often.acquire(timeout=10)
    crew.run()
    crew.close()


def test_a_stream_counts_as_many_as_are_in_flight() -> None:
    done = [0, 0]

    def task(name: int, seconds: float) -> None:
        time.sleep(seconds)
        done[name] += 1

    crew = RequestThreads([lambda: task(0, 0.001), lambda: task(1, 0.05)])
    with crew.stream() as count:
        start = time.perf_counter()
        for _ in range(25):
            count()
        assert sum(done) >= 50
        assert done[0] > 4 * done[1], "nobody waits for the slower one"
        assert time.perf_counter() - start < 25 * 0.05
    total = sum(done)
    time.sleep(0.1)
    assert sum(done) == total, "all have ended with the context"
    crew.close()


def test_a_failure_in_a_stream_is_raised_and_the_crew_is_free_again() -> None:
    runs: list[int] = []

    def task() -> None:
        runs.append(len(runs))
        if len(runs) == 5:
            raise RuntimeError("as told")

    def count_often(crew: RequestThreads) -> None:
        with crew.stream() as count:
            for _ in range(1000):
                count()
                time.sleep(0.001)

    crew = RequestThreads([task, lambda: None])
    with pytest.raises(RuntimeError, match="as told"):
        count_often(crew)
    crew.run()
    crew.close()
    assert len(runs) == 6


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_raised_and_the_next_set_runs(failing: int) -> None:
    runs: list[int] = []

    def task(name: int) -> None:
        runs.append(name)
        if name == failing and len(runs) <= 2:
            raise RuntimeError("as told")

    crew = RequestThreads([lambda: task(0), lambda: task(1)])
    with pytest.raises(RuntimeError, match="as told"):
        crew.run()
    assert sorted(runs) == [0, 1], "the other task has run all the same"
    crew.run()
    crew.close()
    assert sorted(runs) == [0, 0, 1, 1]


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    crew = RequestThreads([lambda: None] * 4)
    its_own = set(threading.enumerate()) - before
    assert len(its_own) == 4
    crew.run()
    crew.close()
    crew.close()
    assert not any(thread.is_alive() for thread in its_own)
