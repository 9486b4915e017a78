"""Which jobs run beside each other, without processes: children that answer at once."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_ngraph.compilers.base import Occupation
from mlflow_ngraph.execute.process_pool import Job, ProcessPool, Steps, expected_bytes
from mlflow_ngraph.processes.child import ChildFailure, OutOfTime
from mlflow_ngraph.verdicts import Verdict

GB = 10**9


class Ready:
    """A child that has answered."""

    settled = True

    def handle_messages(self) -> None:
        pass

    def resident_bytes(self) -> int:
        return 0


class Log:
    """Jobs that need some turns each, and what was running at the same time."""

    def __init__(self, **how: Any) -> None:
        self.pool = ProcessPool(**{"together": True, "processors": 4, "available_bytes": lambda: 100 * GB, **how})
        self.running: list[str] = []
        self.together: list[set[str]] = []
        self.order: list[str] = []
        self.jobs: dict[str, Job] = {}

    def add(
        self, name: str, occupies: Occupation = "processor", seconds: float = 1.0, bytes_: int = GB, turns: int = 3
    ) -> Log:
        def steps(job: Job) -> Steps:
            self.running.append(name)
            self.order.append(name)
            try:
                for _ in range(turns):
                    self.together.append(set(self.running))
                    yield Ready()  # type: ignore[misc]
            finally:
                self.running.remove(name)

        self.jobs[name] = Job(steps, occupies, seconds, bytes_)
        self.pool.add(self.jobs[name])
        return self

    def work(self, *meanwhile: Any) -> Log:
        self.pool.work(*meanwhile)
        assert self.running == []
        return self

    @property
    def most(self) -> int:
        return max(map(len, self.together))


def test_as_many_jobs_as_processors() -> None:
    log = Log(processors=3)
    for name in "abcde":
        log.add(name)
    log.work()
    assert log.most == 3
    assert sorted(log.order) == list("abcde")


def test_what_occupies_all_processors_counts_as_half_of_them() -> None:
    log = Log(processors=4).add("wide", "processors").add("a").add("b").add("c").work()
    assert {"wide", "a", "b"} in log.together
    assert not any(len(together) > 3 for together in log.together if "wide" in together)
    assert Log(processors=8).add("x", "processors").add("y", "processors").add("z", "processors").work().most == 2


def test_two_processors_have_one_of_each() -> None:
    log = Log(processors=2).add("wide", "processors").add("long", seconds=9).add("wide too", "processors").work()
    assert {"wide", "long"} in log.together
    assert log.most == 2


def test_the_longest_begins_first_and_what_measures_is_alone_at_the_end() -> None:
    log = Log(processors=1).add("short").add("tuned", "machine", seconds=99).add("long", seconds=9).work()
    assert log.order == ["long", "short", "tuned"]
    log = Log().add("tuned", "machine").add("a").add("b", "processors").add("tuned too", "machine").work()
    assert all(len(together) == 1 for together in log.together if together & {"tuned", "tuned too"})
    assert log.jobs["tuned"].beside == 0


def test_the_shortest_begins_first_where_not_all_may_be_done() -> None:
    log = (
        Log(processors=1, hurried=True).add("long", seconds=9).add("tuned", "machine", seconds=0.1).add("short").work()
    )
    assert log.order == ["short", "long", "tuned"]


def test_alone_is_one_after_the_other_in_the_order_given() -> None:
    log = Log(together=False).add("a").add("b", seconds=9).add("c", "machine").add("d").work()
    assert (log.most, log.order) == (1, list("abcd"))
    assert all(job.beside == 0 for job in log.jobs.values())


def test_memory_holds_back_what_might_not_fit_but_never_everything() -> None:
    log = Log(available_bytes=lambda: 5 * GB).add("a", bytes_=3 * GB, seconds=3).add("b", bytes_=3 * GB).add("c").work()
    assert {"a", "c"} in log.together, "a smaller one goes first"
    assert not any({"a", "b"} <= together for together in log.together)
    assert Log(available_bytes=lambda: 0).add("a").add("b").work().order == ["a", "b"]
    assert expected_bytes(None) > expected_bytes(1000) > GB


def test_a_job_knows_the_most_that_ran_beside_it() -> None:
    log = Log(processors=3).add("long", seconds=9, turns=9).add("b", seconds=3).add("c").add("d", turns=1).work()
    assert log.jobs["long"].beside == 2
    assert log.jobs["d"].beside >= 1


def test_counting_anew_forgets_what_ran_before() -> None:
    log, pool = Log(), Log().pool
    found = []

    def steps(job: Job) -> Steps:
        yield Ready()  # type: ignore[misc]
        found.append(job.beside)
        for _ in range(5):
            yield Ready()  # type: ignore[misc]
        pool.recount(job)
        found.append(job.beside)

    log.pool = pool
    pool.add(Job(steps, "processor", 9.0, GB))
    log.add("short", turns=1).work()
    assert found == [1, 0]


def test_a_job_may_add_others() -> None:
    log = Log()

    def steps(job: Job) -> Steps:
        yield Ready()  # type: ignore[misc]
        log.add("second")

    log.pool.add(Job(steps, "processor", 1.0, GB))
    assert log.work().order == ["second"]


def test_the_parents_own_work_is_done_once_while_the_first_jobs_run() -> None:
    seen: list[list[str]] = []
    log = Log(processors=1).add("a").add("b")
    log.work(lambda: seen.append(list(log.running)))
    assert seen == [["a"]]
    Log().work(lambda: seen.append([]))
    assert seen == [["a"], []], "also where there is nothing to do"


def test_an_error_ends_what_runs() -> None:
    log = Log().add("a", turns=99).add("b", turns=99)

    def steps(job: Job) -> Steps:
        yield Ready()  # type: ignore[misc]
        raise KeyboardInterrupt

    log.pool.add(Job(steps, "processor", 1.0, GB))
    with pytest.raises(KeyboardInterrupt):
        log.work()
    assert log.running == []


@pytest.mark.parametrize(
    ("verdict", "beside", "expected"),
    [
        (Verdict.OOM, 1, True),
        (Verdict.TIMEOUT, 2, True),
        (Verdict.CRASHED, 1, True),
        (Verdict.OOM, 0, False),
        (Verdict.FAILED, 1, False),
        (Verdict.UNSUPPORTED, 1, False),
    ],
)
def test_who_may_be_to_blame(verdict: Verdict, beside: int, expected: bool) -> None:
    job = Job(lambda job: iter(()), "processor", 1.0, GB, beside)  # type: ignore[arg-type,return-value]
    assert Log().pool.suspects_others(job, ChildFailure(verdict, "reason")) is expected
    assert not Log().pool.suspects_others(job, OutOfTime("nobody has more time alone"))
