"""Tasks of a crew really run at the same time, and a failure of one costs nobody else."""

from __future__ import annotations

import threading

import pytest

from mlflow_ngraph.compilers.crew import Crew


def test_all_tasks_are_in_flight_at_once() -> None:
    # Nobody passes the barrier unless all three are in it.
    barrier, done = threading.Barrier(3, timeout=10), []

    def task(name: int) -> None:
        barrier.wait()
        done.append(name)

    crew = Crew([lambda name=name: task(name) for name in range(3)])  # type: ignore[misc]
    for _ in range(50):
        crew.run()
    crew.close()
    assert len(done) == 150
    assert all(set(done[start : start + 3]) == {0, 1, 2} for start in range(0, 150, 3)), "sets overlap"


def test_the_first_task_runs_in_the_thread_that_calls() -> None:
    threads: list[int] = []
    crew = Crew([lambda: threads.append(threading.get_ident())])
    crew.run()
    crew.close()
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_raised_and_the_next_set_runs(failing: int) -> None:
    runs: list[int] = []

    def task(name: int) -> None:
        runs.append(name)
        if name == failing and len(runs) <= 2:
            raise RuntimeError("as told")

    crew = Crew([lambda: task(0), lambda: task(1)])
    with pytest.raises(RuntimeError, match="as told"):
        crew.run()
    assert sorted(runs) == [0, 1], "the other task has run all the same"
    crew.run()
    crew.close()
    assert sorted(runs) == [0, 0, 1, 1]


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    crew = Crew([lambda: None] * 4)
    its_own = set(threading.enumerate()) - before
    assert len(its_own) == 3
    crew.run()
    crew.close()
    crew.close()
    assert not any(thread.is_alive() for thread in its_own)
