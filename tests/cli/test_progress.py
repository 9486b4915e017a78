from __future__ import annotations

import io

import pytest
from rich.console import Console

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.progress import Progress, ShownLane, State

LANES = {"a": ShownLane("resnet18", "identity", 10.0), "b": ShownLane("resnet18", "tvm bf16", 40.0)}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> State:
    return State(LANES, cells=4, clock=clock)


def cell(lane: str, batch: int, verdict: str = "ok", reason: str = "") -> dict[str, object]:
    name = f"{lane}-b{batch}"
    return {"event": "cell_finished", "cell": name, "lane": lane, "batch": batch, "verdict": verdict, "reason": reason}


def test_what_is_being_done(state: State) -> None:
    assert state.update({"event": "workload_started", "workload": "timm:resnet18", "label": "ResNet-18"})
    assert state.activity == "preparing ResNet-18"
    assert state.update({"event": "stage", "workload": "timm:resnet18", "stage": "export onnx"}) is None
    assert state.activity == "preparing ResNet-18: export onnx"
    state.update({"event": "process_ended", "workload": "timm:resnet18", "purpose": "prepare"})
    assert state.activity == "preparing ResNet-18"
    state.update({"event": "stage", "lane": "b", "stage": "compile", "batch": 2, "purpose": "build"})
    assert state.activity == "compiling resnet18 with tvm bf16 batch 2"
    state.update({"event": "process_ended", "lane": "b", "purpose": "build"})
    state.update({"event": "round", "batch": 2, "round": 0, "lanes": ["b", "a"]})
    assert state.activity == "measuring resnet18 at batch 2: identity, tvm bf16"


def test_what_is_done_at_the_same_time(state: State) -> None:
    for ref in ("timm:resnet18", "timm:deit"):
        state.update({"event": "workload_started", "workload": ref, "label": ref.partition(":")[2]})
    compiling = state.update({"event": "stage", "lane": "b", "stage": "compile", "batch": 1, "purpose": "build"})
    assert compiling == "compiling resnet18 with tvm bf16 batch 1"
    state.update({"event": "stage", "workload": "timm:deit", "stage": "reference b1", "purpose": "prepare"})
    state.update({"event": "stage", "lane": "a", "stage": "verify", "batch": 4, "purpose": "verify"})
    state.update({"event": "stage", "lane": "b", "stage": "tune: batch 1/3", "batch": 1, "purpose": "build"})
    assert state.activity == (
        "tune: batch 1/3 resnet18 with tvm bf16 batch 1; preparing deit: reference b1; "
        "verifying resnet18 with identity batch 4"
    )
    for ended in ({"lane": "b"}, {"workload": "timm:deit"}, {"lane": "a"}):
        state.update({"event": "process_ended", **ended})
    state.update({"event": "round", "batch": 2, "round": 0, "lanes": ["b", "a"]})
    assert state.activity == "measuring resnet18 at batch 2: identity, tvm bf16"
    again = {"event": "repeated_alone", "lane": "b", "reason": "out of memory"}
    assert state.update(again) == "resnet18 with tvm bf16: once more with nothing beside it: out of memory"


def test_the_estimate_holds_until_something_is_known(state: State) -> None:
    assert state.remaining_s == 100


def test_what_is_left_follows_the_pace_of_what_is_done(state: State, clock: Clock) -> None:
    clock.now += 20
    state.update(cell("a", 1))
    assert state.elapsed_s == 20
    assert state.remaining_s == pytest.approx((20 + 10) / (10 + 10) * (10 + 40 + 40)), "half its own, half the estimate"


def test_the_time_to_go_is_right_from_the_first_cell_on_where_cells_end_together(clock: Clock) -> None:
    refs, compilers, batches = ("a", "b", "c"), range(5), (1, 8)
    lanes = {f"{ref}{number}": ShownLane(ref, str(number), 8.0, 6.0) for ref in refs for number in compilers}
    state = State(lanes, 30, dict.fromkeys(refs, 15.0), clock=clock)
    for ref in refs:
        clock.now += 15
        state.update({"event": "workload_prepared", "workload": ref})
    for lane in lanes:
        clock.now += 6
        state.update({"event": "process_ended", "purpose": "verify", "lane": lane})
    said = []
    for ref in refs:
        for batch in batches:
            state.update(
                {"event": "round", "batch": batch, "round": 0, "lanes": [f"{ref}{name}" for name in compilers]}
            )
            clock.now += 5 * 8
            for name in compilers:
                state.update(cell(f"{ref}{name}", batch))
                said.append((state.remaining_s, 30 * 8 - state.elapsed_s + 45 + 15 * 6))
    assert all(abs(told - true) <= 5 * 8 for told, true in said)


def test_what_is_said_of_many_cells_is_said_once(state: State) -> None:
    noisy = {"noise": "others used 70 % of the machine"}
    assert state.update({**cell("a", 1), **noisy}) == (
        "[1/4] resnet18 identity batch 1: ok (the machine was not quiet: others used 70 % of the machine)"
    )
    assert state.update({**cell("a", 2), **noisy}) == "[2/4] resnet18 identity batch 2: ok (not quiet)"
    state.update(cell("b", 1, "failed", "no such operator"))
    assert (
        state.update(cell("b", 2, "failed", "no such operator")) == "[4/4] resnet18 tvm bf16 batch 2: failed (as above)"
    )


def test_one_odd_cell_does_not_make_it_absurd(state: State, clock: Clock) -> None:
    clock.now += 10_000
    state.update(cell("a", 1))
    assert state.remaining_s == pytest.approx(4.0 * 90)


def test_nothing_is_left_at_the_end(state: State, clock: Clock) -> None:
    for lane in LANES:
        for batch in (1, 2):
            clock.now += 1
            state.update(cell(lane, batch))
    assert (state.done, state.remaining_s) == (4, 0.0)


def test_a_cell_counts_once(state: State) -> None:
    state.update(cell("a", 1, "crashed"))
    state.update(cell("a", 1))
    assert state.done == 1


def test_what_is_left_out_counts_as_done(state: State) -> None:
    event = {"event": "left_out", "cell": "b-b2", "lane": "b", "batch": 2, "reason": "no time", "final": False}
    assert state.update(event) == "[1/4] resnet18 tvm bf16 batch 2: left out (no time)"
    assert state.done == 1


def test_a_resumed_study_starts_where_it_was(state: State, clock: Clock) -> None:
    started = {"event": "session_started", "session": 2, "study_id": "aaa-1", "name": "bbb", "done": 2, "cells": 4}
    assert state.update(started) == "going on with aaa-1, which has 2 of 4 cells; --fresh begins anew"
    assert state.done == 2
    assert state.remaining_s == pytest.approx(50)
    clock.now += 25
    state.update(cell("a", 2))
    assert state.done == 3
    assert state.update(cell("b", 2)) == "[4/4] resnet18 tvm bf16 batch 2: ok"


def test_events_that_nobody_knows_are_no_trouble(state: State) -> None:
    assert state.update({"event": "from_the_future", "lane": "z"}) is None
    assert state.update({"event": "stage", "lane": "z", "stage": "compile"}) is None
    assert state.update(cell("z", 1)) is not None


def shown(state: State, events: list[dict[str, object]], *, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system="standard" if terminal else None)
    with Progress(state, console) as progress:
        for event in events:
            progress.on_event(event)
    return stream.getvalue()


EVENTS: list[dict[str, object]] = [
    {"event": "workload_started", "workload": "timm:resnet18", "label": "ResNet-18"},
    {"event": "stage", "lane": "a", "stage": "compile", "batch": 1},
    {"event": "round", "batch": 1, "round": 0, "lanes": ["a"]},
    {"event": "round", "batch": 1, "round": 1, "lanes": ["a"]},
    cell("a", 1),
    cell("b", 1, "timeout", "compile did not finish within its time limit"),
]


def test_plain_lines_off_a_terminal(state: State) -> None:
    text = shown(state, EVENTS, terminal=False)
    assert "\x1b" not in text
    lines = [line.split(maxsplit=2)[2] for line in text.splitlines()[:5]]
    assert lines[0] == "preparing ResNet-18"
    assert lines[1] == "compiling resnet18 with identity batch 1"
    assert lines[2] == "measuring resnet18 at batch 1: identity"
    assert lines[3].startswith("[1/4] resnet18 identity batch 1: ok; about ")
    assert lines[4] == "[2/4] resnet18 tvm bf16 batch 1: timeout (compile did not finish within its time"
    assert text.splitlines()[5].startswith(f"{'':14}limit); about ")


def test_control_characters_of_a_reason_never_reach_the_terminal(state: State) -> None:
    said = "[2Jcleared\x1b[2J \x1b]0;title\x07"
    events: list[dict[str, object]] = [
        {"event": "cache_problem", "reason": said},
        {"event": "journal_busy", "reason": said},
        cell("a", 1, "failed", said),
    ]
    for terminal in (True, False):
        stream = io.StringIO()
        console = output.console(file=stream, force_terminal=terminal, width=200, color_system=None)
        with Progress(state, console) as progress:
            for event in events:
                progress.on_event(event)
        assert "cleared" in stream.getvalue()
        assert "\x1b[2J" not in stream.getvalue()
        assert "\x1b]0;" not in stream.getvalue()


def test_one_live_area_on_a_terminal(state: State) -> None:
    text = shown(state, EVENTS, terminal=True)
    assert "2/4 cells" in text
    assert "elapsed, about" in text
    assert "\x1b[33m[2/4] resnet18 tvm bf16 batch 1: timeout" in text


def test_nothing_refreshes_in_the_background(state: State) -> None:
    progress = Progress(state, Console(file=io.StringIO(), force_terminal=True))
    assert progress._live is not None
    assert progress._live.auto_refresh is False


def test_a_thousand_quick_rounds_are_not_drawn_one_by_one(state: State) -> None:
    rounds = [{"event": "round", "batch": 1, "round": number, "lanes": ["a"]} for number in range(1, 1000)]
    assert shown(state, rounds, terminal=True).count("measuring") <= 3


def test_engines_that_are_reused_and_those_that_cannot_be(state: State) -> None:
    built = {"event": "engine_built", "lane": "b", "reused": {"study_id": "s-1", "tracking_uri": "http://here"}}
    assert state.update(built) == "reusing resnet18 with tvm bf16: compiled by study s-1 on http://here"
    assert state.update({**built, "reused": None}) is None
    problem = {"event": "cache_problem", "lane": "b", "reason": "an engine in the cache is damaged"}
    assert state.update(problem) == "resnet18 with tvm bf16: an engine in the cache is damaged"


def test_what_is_to_go_ends_with_the_time_of_the_study(clock: Clock) -> None:
    state = State(LANES, cells=4, within_s=30.0, clock=clock)
    assert state.remaining_s == 30.0, "the cells take 100 s"
    state.update({"event": "machine_busy", "holder": "somebody"})
    clock.now += 100.0
    state.update({"event": "session_started"})
    clock.now += 12.0
    assert state.remaining_s == 18.0, "waiting for others does not count"
    clock.now += 60.0
    assert state.remaining_s == 0.0
