"""Whole studies: what is prepared, compiled and verified at the same time, and that nothing of it is there while anybody times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.devices import processors
from mlflow_ngraph.execute import journal
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph.verdicts import Verdict

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_compiler")]

WORKLOADS = [f"block:mha?width=16&depth={depth}" for depth in (1, 2, 3)]


def fake(behaviour: str, at: str = "compile", **flags: Any) -> dict[str, Any]:
    return {"name": "fake", "flags": {"behaviour": behaviour, "at": at, **flags}}


SLOW = [fake("slow", delay_ms=300), fake("slow", delay_ms=301)]
SEARCHES = fake("slow", "search", delay_ms=100, search_batches=3)


def study(**changes: Any) -> Study:
    base = {
        "name": "beside",
        "workloads": WORKLOADS[:2],
        "compilers": SLOW,
        "batch_sizes": [1],
        "repetitions": 4,
        "slice_repetitions": 2,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.1},
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
        "limits": {"reload_seconds": 0, "verify_seconds": 1},
        "cache": "off",
    }
    return parse({**base, **changes})


@pytest.fixture(scope="module")
def four_processors() -> Iterator[None]:
    """Whatever this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processors, "available", lambda: 4)
        yield


@dataclass(frozen=True)
class Span:
    """Seconds in which something was there."""

    what: str
    whose: str
    begin: float
    end: float

    def meets(self, other: Span) -> bool:
        return self.begin < other.end and other.begin < self.end


def events(outcome: Outcome, kind: str) -> list[journal.Event]:
    return [event for event in journal.read(outcome.directory) if event["event"] == kind]


def lives(outcome: Outcome) -> list[Span]:
    """Of every process that prepared, compiled or verified, from its start to its end."""
    return [
        Span(event["purpose"], event.get("lane") or event["workload"], event["started_at"], event["at"])
        for event in events(outcome, "process_ended")
    ]


def slices(outcome: Outcome) -> list[Span]:
    """From the untimed calls before each slice to its last repetition."""
    return [
        Span("slice", event["lane"], start - event["settle_s"], start + event["wall_s"])
        for event in events(outcome, "slice")
        for start in [event["started_ns"] / 1e9]
    ]


def met(spans: list[Span]) -> list[tuple[Span, Span]]:
    return [(one, other) for one, other in combinations(spans, 2) if one.meets(other)]


def run(given: Study, home: Path, **options: Any) -> Outcome:
    return runner.run_study(given, home=home, offline=True, **options)


@pytest.fixture(scope="module")
def together(
    processes: None, fake_compiler: None, four_processors: None, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """Three workloads, the first two of which are prepared beside each other, with a compiler that searches."""
    given = study(workloads=WORKLOADS, compilers=[*SLOW, SEARCHES, fake("oom")])
    return run(given, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def alone(
    processes: None, fake_compiler: None, four_processors: None, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    return run(study(builds="alone", compilers=[*SLOW, fake("oom")]), tmp_path_factory.mktemp("home"))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", ["together", "alone"])
def test_no_process_that_prepares_compiles_or_verifies_is_there_while_anybody_times(
    how: str, request: pytest.FixtureRequest
) -> None:
    outcome = request.getfixturevalue(how)
    timed, others = slices(outcome), lives(outcome)
    assert len(timed) >= 2 * 3 * 2, "workloads, lanes, rounds"
    assert {span.what for span in others} == {"prepare", "build", "verify"}
    assert [(one, other) for one in timed for other in others if one.meets(other)] == []
    assert met(timed) == []


def test_engines_are_compiled_beside_each_other_and_so_are_workloads_prepared(together: Outcome) -> None:
    found = {(one.what, other.what) for one, other in met(lives(together)) if one.whose != other.whose}
    assert ("prepare", "prepare") in found
    assert ("build", "build") in found
    prepared = {event["workload"]: event["beside"] for event in events(together, "workload_prepared")}
    assert min(prepared[ref] for ref in list(prepared)[:2]) > 0
    assert list(prepared.values())[2] == 0, "the third of three is by itself"


def test_two_workloads_are_provided_for_before_the_first_is_measured(together: Outcome) -> None:
    first = min(span.begin for span in slices(together))
    ends = {event["workload"]: event["at"] for event in events(together, "workload_prepared")}
    assert [at < first for at in ends.values()] == [True, True, False]


def lane_of(outcome: Outcome, **flags: Any) -> set[str]:
    return {
        lane.lane.id
        for lane in outcome.record.lanes.values()
        if lane.lane.compiler == "fake" and flags.items() <= dict(lane.lane.flags).items()
    }


def test_an_engine_says_that_others_were_compiled_beside_it(together: Outcome, alone: Outcome) -> None:
    slow = lane_of(together, delay_ms=300.0) | lane_of(together, delay_ms=301.0)
    beside = [event["built_beside"] for event in events(together, "engine_built") if event["lane"] in slow]
    assert beside
    assert min(beside) > 0
    for lane_id in slow:
        for cell in together.record.lanes[lane_id].cells.values():
            assert cell.metrics["built_beside"] > 0
            assert cell.metrics["compile_s"] >= 0.3
    assert {event["built_beside"] for event in events(alone, "engine_built")} == {0}


def test_alone_nothing_is_beside_anything(alone: Outcome) -> None:
    assert met(lives(alone)) == []
    assert events(alone, "repeated_alone") == []


def test_a_search_that_measures_has_the_machine_to_itself(together: Outcome) -> None:
    searching = lane_of(together, search_batches=3)
    assert len(searching) == 3
    found = lives(together)
    own = [span for span in found if span.whose in searching and span.what == "build"]
    assert len(own) == 3
    assert [(one, other) for one in own for other in found if one is not other and one.meets(other)] == []
    assert {event["built_beside"] for event in events(together, "engine_built") if event["lane"] in searching} == {0}


def test_who_may_have_lacked_memory_for_others_tries_once_more_alone(together: Outcome) -> None:
    hungry = lane_of(together, behaviour="oom")
    again = [event for event in events(together, "repeated_alone") if event["lane"] in hungry]
    assert {event["lane"] for event in again} <= hungry
    assert again
    assert "as told" in again[0]["reason"]
    for lane_id in hungry:
        for cell in together.record.lanes[lane_id].cells.values():
            assert (cell.verdict, "as told" in cell.reason) == (Verdict.OOM, True)
    found = lives(together)
    last = max((span for span in found if span.whose == again[0]["lane"]), key=lambda span: span.begin)
    assert [other for other in found if other is not last and last.meets(other)] == []


def test_everything_else_is_measured(together: Outcome) -> None:
    hungry = lane_of(together, behaviour="oom")
    for lane in together.record.lanes.values():
        verdicts = {cell.verdict for cell in lane.cells.values()}
        assert verdicts == ({Verdict.OOM} if lane.lane.id in hungry else {Verdict.OK})


def test_the_journal_says_what_building_used_of_the_processors(together: Outcome) -> None:
    used = [event["cpu_s"] for event in events(together, "process_ended")]
    assert all(seconds > 0 for seconds in used)


@pytest.mark.usefixtures("processes", "four_processors")
@pytest.mark.parametrize("last", ["engine_built", "slice"])
def test_a_study_that_was_interrupted_while_two_workloads_were_under_way_goes_on(tmp_path: Path, last: str) -> None:
    given = study()

    class Stop:
        def on_event(self, event: journal.Event) -> None:
            if event["event"] == last:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Stop())
    (directory,) = (tmp_path / "studies").iterdir()
    begun = [event["event"] for event in journal.read(directory)]
    assert begun.count("lane_started") == begun.count("lane_finished") == 6
    outcome = run(given, tmp_path)
    assert (outcome.directory, outcome.exit_code) == (directory, 0)
    built = [event["id"] for event in events(outcome, "engine_built")]
    assert len(built) == len(set(built)), "nothing is compiled twice"
    assert [(one, other) for one in slices(outcome) for other in lives(outcome) if one.meets(other)] == []
