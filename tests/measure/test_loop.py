import gc
import time

import pytest

from mlflow_ngraph import process_memory
from mlflow_ngraph.measure import loop


def test_a_slice_has_one_duration_a_repetition():
    taken = loop.take_slice(lambda: time.sleep(0.002), 20, 60)
    assert len(taken.durations_ns) == 20
    assert min(taken.durations_ns) >= 2_000_000
    assert taken.wall_s >= sum(taken.durations_ns) / 1e9


def test_a_slice_ends_at_its_limit_with_at_least_one_repetition():
    assert len(loop.take_slice(lambda: time.sleep(0.05), 100, 0.12).durations_ns) <= 4
    assert len(loop.take_slice(lambda: time.sleep(0.05), 100, 0.001).durations_ns) == 1


def test_garbage_collection_is_off_within_and_on_after():
    states = []
    loop.take_slice(lambda: states.append(gc.isenabled()), 3, 60)
    assert states == [False] * 3
    assert gc.isenabled()


def test_garbage_collection_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError):
        loop.take_slice(lambda: 1 // 0, 3, 60)
    assert gc.isenabled()


def test_warm_up_ends_when_windows_agree():
    result = loop.warm_up(lambda: time.sleep(0.003), 5, 0.9, 60.0, 0.003)
    assert result.steady
    assert result.repetitions >= 10, "it takes two windows to agree"
    assert result.repetitions % 5 == 0
    assert result.call_s >= 0.003


def test_warm_up_says_when_it_was_never_steady():
    delay = iter(range(1, 1000))
    result = loop.warm_up(lambda: time.sleep(0.001 * next(delay)), 3, 0.01, 0.3, 0.001)
    assert not result.steady
    assert result.seconds >= 0.3


def test_a_slow_first_call_was_the_warm_up():
    result = loop.warm_up(lambda: pytest.fail("called again"), 5, 0.05, 2.0, 30.0)
    assert (result.repetitions, result.call_s) == (0, 30.0)


def test_peak_memory_sees_what_was_freed():
    process_memory.reset_peak()
    before = process_memory.peak_bytes()
    block = bytearray(80 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert process_memory.peak_bytes() - before > 60 << 20
