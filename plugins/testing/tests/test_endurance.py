from __future__ import annotations

import pytest

from mlflow_ngraph_testing.endurance import ALLOWED_BYTES, SAMPLES, Usage, growth, killed_by_a_signal

STEADY = [7] * SAMPLES


def usage(memory: list[int] = STEADY, threads: list[int] = STEADY, files: list[int] = STEADY) -> Usage:
    return Usage(200, memory, threads, files)


def test_what_grows_all_the_time_is_a_leak() -> None:
    leak = [index * ALLOWED_BYTES // 8 for index in range(SAMPLES)]
    assert growth(leak) > ALLOWED_BYTES
    expected = f"leave {growth(leak)} bytes of memory behind; allowed: {ALLOWED_BYTES}"
    assert usage(memory=leak).problem() == f"200 cycles of load, run and close {expected}"


@pytest.mark.parametrize(
    "memory",
    [
        [0] * 6 + [50 * ALLOWED_BYTES] * (SAMPLES - 6),
        [(index % 5) * ALLOWED_BYTES for index in range(SAMPLES)],
        [index * 1000 for index in range(SAMPLES)],
    ],
    ids=["what a runtime takes once", "what comes and goes", "crumbs"],
)
def test_what_does_not_is_none(memory: list[int]) -> None:
    assert usage(memory=memory).problem() is None


def test_one_thread_or_file_too_many_is_a_leak() -> None:
    more = [7] * 16 + [8] * (SAMPLES - 16)
    assert "leave 1 threads behind" in str(usage(threads=more).problem())
    assert "leave 1 open files behind" in str(usage(files=more).problem())


def test_a_process_that_a_signal_kills_is_a_problem() -> None:
    said = Usage(200, STEADY, STEADY, STEADY, killed_by=11).problem()
    assert said == "after two engines came and went, a signal that Python handles ends the process with SIGSEGV"


def test_a_copy_of_a_healthy_process_outlives_a_signal() -> None:
    assert killed_by_a_signal() is None
