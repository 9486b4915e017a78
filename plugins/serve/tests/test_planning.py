"""Batches, waiting and queue follow from the figures and the bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph_serve.planning import RESERVE, SAME, Speed, Wishes, plan


def speed(batch: int, throughput: float, tail: float = 1.1) -> Speed:
    return Speed(throughput, batch / throughput, tail * batch / throughput)


FLAT = {1: speed(1, 99.0), 2: speed(2, 100.0), 8: speed(8, 101.0)}
STEEP = {1: speed(1, 100.0), 8: speed(8, 400.0), 32: speed(32, 800.0)}


def test_where_batches_gain_nothing_there_are_none() -> None:
    found = plan(FLAT, Wishes())
    assert found.max_batch == 1
    assert found.max_delay_s == 0.0


def test_without_a_bound_the_fastest_batch_size_is_taken() -> None:
    found = plan(STEEP, Wishes())
    assert found.max_batch == 32
    # In batches of 8 the samples of a full one would take 80 ms, and waiting is never more than half of the batch.
    assert found.max_delay_s == pytest.approx(min(32 / 400 - 32 / 800, 0.5 * 32 / 800))


def test_the_bound_excludes_what_is_too_slow() -> None:
    # Batch 8 takes 22 ms in the tail, batch 32 takes 44 ms: twice that, and the reserve.
    assert plan(STEEP, Wishes(max_p99_ms=90)).max_batch == 8
    assert plan(STEEP, Wishes(max_p99_ms=120)).max_batch == 32
    found = plan(STEEP, Wishes(max_p99_ms=30))
    assert found.max_batch == 1
    with pytest.raises(UsageError, match=r"--max-p99-ms must be at least 28"):
        plan(STEEP, Wishes(max_p99_ms=20))
    assert plan(STEEP, Wishes(max_p99_ms=28)).max_batch == 1


def test_what_requests_cost_outside_the_engine_is_part_of_the_bound() -> None:
    tiny = {1: Speed(25_000.0, 0.00004, 0.00004)}
    alone, found = plan(tiny, Wishes(max_p99_ms=20)), plan(tiny, Wishes(max_p99_ms=20), outside_s=0.0005)
    assert (alone.max_queue, found.max_queue) == (399, 27)
    assert found.expected_p99_s == pytest.approx(alone.expected_p99_s + 0.0005)
    assert found.room_s == pytest.approx(0.016)
    assert plan(tiny, Wishes()).room_s == math.inf
    with pytest.raises(UsageError, match=r"and 5 ms outside the engine, .* --max-p99-ms must be at least 6\.4"):
        plan(tiny, Wishes(max_p99_ms=5), outside_s=0.005)


def test_what_is_asked_for_is_taken_or_refused() -> None:
    found = plan(STEEP, Wishes(max_batch=4, max_delay_ms=3, max_queue=50))
    assert (found.max_batch, found.max_delay_s, found.max_queue) == (4, 0.003, 50)
    for wishes, said in (
        (Wishes(max_batch=64), "largest batch size is 32"),
        (Wishes(max_batch=8, max_queue=2), "batches have 8 samples: --max-queue must be at least that"),
        (Wishes(timeout_s=1e-6), "--timeout-s must be at least 0.04"),
        (Wishes(max_batch=32, max_p99_ms=50), "batch size 32"),
        (Wishes(max_batch=8, max_p99_ms=60, max_delay_ms=50), "leaves 4 ms for --max-delay-ms, not 50"),
    ):
        with pytest.raises(UsageError, match=said):
            plan(STEEP, wishes)


def test_an_engine_with_one_batch_size_waits_for_others() -> None:
    found = plan({8: speed(8, 400.0)}, Wishes())
    assert found.max_batch == 8
    assert found.max_delay_s == pytest.approx(0.01)


def test_few_samples_are_filled_up_where_that_is_sooner() -> None:
    found = plan(STEEP, Wishes())
    assert [found.size(waiting) for waiting in (1, 2, 7, 8, 9, 31, 32, 100)] == [1, 8, 8, 8, 8, 32, 32, 32]
    # Nothing is gained by computing two samples that nobody wants.
    assert plan(FLAT, Wishes(max_batch=8)).size(6) == 2


@given(
    st.dictionaries(
        st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.tuples(st.floats(1, 1e4), st.floats(1, 3)), min_size=1
    ),
    st.floats(0.1, 1e4),
    st.integers(1, 4),
)
def test_the_plan_keeps_the_bound(figures: dict[int, tuple[float, float]], bound_ms: float, workers: int) -> None:
    speeds = {batch: speed(batch, throughput, tail) for batch, (throughput, tail) in figures.items()}
    wishes = Wishes(max_p99_ms=bound_ms)
    try:
        found = plan(speeds, wishes, workers)
    except UsageError:
        assert all(2 * one.p99_s > bound_ms / 1000 * (1 - RESERVE) for one in speeds.values())
        return
    room = bound_ms / 1000 * (1 - RESERVE)
    own = speeds[found.max_batch]
    assert found.expected_p99_s <= room * (1 + 1e-9)
    # The last in a full queue comes out after the batch that is computed and all full ones before its own.
    batches = math.ceil(found.max_queue / workers / found.max_batch)
    assert batches == 1 or (1 + batches) * own.p99_s <= room * (1 + 1e-9)
    kept = [one.throughput for one in speeds.values() if 2 * one.p99_s <= room]
    assert own.throughput >= SAME * max(kept)
    assert found.max_queue >= found.max_batch
