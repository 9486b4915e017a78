"""Which task is tuned next, when a task is done, and with which tilings it begins: without TVM."""

from __future__ import annotations

import math
from math import prod
from random import Random

import pytest

from mlflow_ngraph_tvm import policy
from mlflow_ngraph_tvm.policy import Progress
from mlflow_ngraph_tvm.seeds import Processor, decide, divisors, tile_outputs, tile_summands

AVX512 = Processor(lanes=16, registers=32, cores=2)


def progress(latencies: list[float | None], weight: float = 1, flops: float = 1e9, batch: int = 4) -> Progress:
    task = Progress(weight, flops)
    for start in range(0, len(latencies), batch):
        task.add(latencies[start : start + batch])
    return task


def test_a_task_stops_after_so_many_trials_without_improvement() -> None:
    recorded = [5.0, 4.0, None, 4.5, 3.0, 3.0, 3.1, None]
    task = progress(recorded)
    assert (task.trials, task.best, task.improved_at) == (8, 3.0, 5)
    assert task.stalled(3)
    assert not task.stalled(4)
    task.add([2.9])
    assert not task.stalled(3)


def test_an_equal_latency_is_no_improvement() -> None:
    assert progress([1.0] * 151).stalled(150)
    assert not progress([1.0] * 150).stalled(150)


def test_a_task_whose_kernels_all_fail_ends_after_the_same_patience() -> None:
    task = progress([None] * 6)
    assert math.isinf(task.best)
    assert task.stalled(6)
    assert not task.stalled(7)


def test_endless_patience() -> None:
    assert not progress([1.0] * 5000).stalled(0)


def test_every_task_gets_a_batch_and_heavy_ones_are_first() -> None:
    tasks = [Progress(1, 5e6), Progress(2, 1e9), Progress(4, 1e9), Progress(1, 3e9)]
    order = []
    while any(task.trials == 0 for task in tasks):
        chosen = policy.choose(tasks, 150)
        assert chosen is not None
        order.append(chosen)
        tasks[chosen].add([1e-3])
    assert order == [2, 3, 1, 0]


def test_trials_go_where_the_model_gains_most() -> None:
    slow, fast = progress([8e-3, 6e-3]), progress([2e-3, 1e-3])
    assert policy.choose([fast, slow], 150) == 1
    often = progress([2e-3, 1e-3], weight=100, flops=1e8)
    assert policy.choose([often, slow], 150) == 0


def test_a_kernel_at_the_speed_of_the_best_has_little_to_gain() -> None:
    # Both take the same time; the first computes as fast as anything here does, the second ten times slower.
    efficient, poor = progress([1e-2] * 4, flops=1e10), progress([1e-2] * 4, flops=1e9)
    assert policy.choose([efficient, poor], 150) == 1


def test_nothing_is_chosen_when_all_tasks_are_done() -> None:
    exhausted = progress([1.0])
    exhausted.exhausted = True
    assert policy.choose([progress([1.0] * 9), exhausted], 8) is None
    assert policy.choose([progress([1.0] * 8), exhausted], 8) == 0


@pytest.mark.parametrize(
    ("trials", "tasks", "candidates", "size"), [(400, 20, 16, 10), (1500, 20, 16, 16), (8, 20, 16, 1)]
)
def test_the_first_batches_leave_half_of_the_trials(trials: int, tasks: int, candidates: int, size: int) -> None:
    assert policy.first_batch(trials, tasks, candidates) == size


def test_the_models_latency_is_known_once_every_task_has_a_kernel() -> None:
    tasks = [progress([2.0], weight=3), Progress(1, 1e9)]
    assert policy.model_latency(tasks) is None
    tasks[1].add([None, 1.0])
    assert policy.model_latency(tasks) == 7.0


def test_divisors() -> None:
    assert divisors(28, 64) == [1, 2, 4, 7, 14, 28]
    assert divisors(28, 7) == [1, 2, 4, 7]


@pytest.mark.parametrize("extents", [(1, 56, 56, 64), (8, 7, 7, 512), (197, 384), (1, 1000), (3, 5)])
@pytest.mark.parametrize("processor", [AVX512, Processor(lanes=8, registers=16, cores=16)])
def test_the_innermost_tile_fits_the_registers(extents: tuple[int, ...], processor: Processor) -> None:
    for seed in range(50):
        tiles = tile_outputs(extents, processor, Random(seed))
        assert [prod(factors) for factors in tiles] == list(extents)
        inner = [factors[-1] for factors in tiles]
        vectors = math.ceil(inner[-1] / processor.lanes)
        assert vectors * prod(inner[:-1]) < processor.registers
        if extents[-1] % processor.lanes == 0:
            assert inner[-1] % processor.lanes == 0


def test_every_core_has_something_to_do_where_the_tile_leaves_anything() -> None:
    for seed in range(50):
        tiles = tile_outputs((1, 56, 56, 64), AVX512, Random(seed))
        assert prod(factors[0] for factors in tiles) >= AVX512.cores


def test_summands_are_split_in_two() -> None:
    tiles = tile_summands((3, 3, 128), Random(0))
    assert [outer * inner for outer, inner in tiles] == [3, 3, 128]


def test_only_the_tiles_of_outputs_and_their_summands_are_decided() -> None:
    tile = "SamplePerfectTile"
    samples = [(tile, (4, 2)), (tile, (1, 1, 1, 8)), (tile, (1, 1, 1, 64)), (tile, (9, 1)), ("SampleCategorical", 1)]
    decided = decide(samples, AVX512, Random(0))
    assert sorted(decided) == [1, 2, 3]
    assert [prod(decided[at]) for at in (1, 2, 3)] == [8, 64, 9]
    assert decide([(tile, (1, 8, 1, 1, 4)), (tile, (2, 2, 2))], AVX512, Random(0)) == {}


def test_kernels_that_cannot_be_searched_are_left_out_of_the_models_latency() -> None:
    hopeless = Progress(1, 1e9, exhausted=True)
    assert policy.model_latency([progress([2.0]), hopeless]) == 2.0
