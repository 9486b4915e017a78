from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract
from tests.support.on_gpu import OnGpu

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]

SHORT: dict[str, object] = {
    "trials": 6,
    "candidates": 2,
    "population": 8,
    "generations": 0,
    "cost_model": "random",
    "evaluator_repeat": 1,
    "evaluator_min_ms": 0,
}
"""A search that takes seconds."""
OF_THE_SEARCH = ("early_stopping", "tiling_seeds", "evaluator_number", "build_timeout_s", "run_timeout_s", "seed")


class TestTVM(CompilerContract):
    compiler = "tvm"
    other_flags: ClassVar = {
        **SHORT,
        "opt_level": 2,
        "mcpu": "x86-64-v2",
        "early_stopping": 0,
        "conv_layout": "nhwc",
        "prepack_weights": False,
        "tiling_seeds": False,
        "evaluator_number": 2,
        "build_timeout_s": 30.0,
        "run_timeout_s": 10.0,
        "seed": 1,
    }
    # One search with its other values is enough, and one engine without any.
    together = ((*SHORT, *OF_THE_SEARCH), ("opt_level", "mcpu", "conv_layout", "prepack_weights"))
    never_imported = ("torch", "timm", "onnx")


class TestTunedTVM(CompilerContract):
    compiler = "tvm"
    flags = SHORT
    other_flags = TestTVM.other_flags
    never_imported = ("torch", "timm", "onnx", "xgboost")
    models = ("cnn", "text_encoder")
    # Which candidates win is decided by their times: two searches may end with other orders of summation.
    repeatable = 1e-5
    # Covered by the untuned class, whose other values include a search, and whose engines are loaded and run by the same code.
    test_other_values_of_flags_are_compiled = None  # type: ignore[assignment]
    test_other_values_of_flags_give_the_same_function = None  # type: ignore[assignment]
    test_reduced_precisions_take_effect_or_are_unsupported = None  # type: ignore[assignment]
    test_an_operator_that_nobody_knows_is_unsupported_by_its_name = None  # type: ignore[assignment]
    test_engines_leave_nothing_behind = None  # type: ignore[assignment]


class TestTVMOnGpu(OnGpu, CompilerContract):
    """Untuned, with the schedules that TVM has for any GPU."""

    compiler = "tvm"
    never_imported = ("torch", "timm", "onnx")
    test_flags_make_the_round_trip = None  # type: ignore[assignment]
    test_other_values_of_flags_are_compiled = None  # type: ignore[assignment]
    test_other_values_of_flags_give_the_same_function = None  # type: ignore[assignment]
