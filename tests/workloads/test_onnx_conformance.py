"""A few dozen of the cases of benchmarks/onnx_conformance.py: whole networks of IR version 3, and what compilers trip over."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support.onnx_cases import Attempt, Case, Outcome, cases
from benchmarks.support.onnx_page import Row, lost, page

pytestmark = pytest.mark.long

CHOSEN = (
    "test_averagepool_2d_ceil",
    "test_averagepool_2d_dilations",
    "test_averagepool_2d_same_lower",
    "test_averagepool_3d_dilations_large_count_include_pad_is_0_ceil_mode_is_True",
    "test_argmax_default_axis_example_select_last_index",
    "test_bitwise_and_i32_2d",
    "test_castlike_FLOAT_to_FLOAT16",
    "test_clip",
    "test_constant_pad",
    "test_dropout_default_mask",
    "test_einsum_inner_prod",
    "test_gather_negative_indices",
    "test_identity",
    "test_matmul_1d_1d",
    "test_maxpool_2d_uint8",
    "test_range_float_type_positive_delta",
    "test_reduce_l1_default_axes_keepdims_example",
    "test_reduce_sum_empty_set",
    "test_reshape_zero_dim",
    "test_sequence_model1",
    "test_size",
    "test_split_variable_parts_1d_opset18",
    "test_top_k",
    "test_where_long_example",
)
PICKY = (
    "test_bitcast_scalar_float32_to_int32",
    "test_nonmaxsuppression_single_box",
    "test_onehot_without_axis",
    "test_resize_downsample_scales_cubic",
)
"""Take some inputs only as they are: numbers without axes, at most 1, whole, or not so large that no memory holds what comes out."""
LIGHT = ("light_inception_v1", "light_shufflenet", "light_squeezenet")
ALONE = "light_squeezenet"
"""Its scores are 1e10, where a rounding is a thousand: the softmax behind them makes 0 or 1 of one, on some processors."""
QUICK = ("identity", "torchscript", "onnxruntime", "openvino")


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("case", [case for case in cases(["light"]) if case.name in LIGHT], ids=lambda case: case.name)
def test_networks_of_ir_version_3_give_what_they_were_shipped_with(case: Case, tmp_path: Path) -> None:
    attempt = Attempt(case, tmp_path, ["onnx"])
    assert attempt.through("onnxruntime") == Outcome("ok")
    assert attempt.through("openvino") == Outcome("ok") or case.name == ALONE


@pytest.mark.usefixtures("compilers")
def test_operators_give_what_the_standard_says(tmp_path: Path) -> None:
    found = {}
    chosen = [case for case in cases(["simple", "node"]) if case.name in CHOSEN]
    assert len(chosen) == len(CHOSEN)
    for case in chosen:
        directory = tmp_path / case.name
        directory.mkdir()
        attempt = Attempt(case, directory, ["module", "onnx"])
        found.update({(name, case.name): attempt.through(name) for name in QUICK})
    for name in ("identity", "torchscript"):
        assert "no ONNX operator SequenceEmpty" in found.pop((name, "test_sequence_model1")).reason
    bad = {key: outcome for key, outcome in found.items() if outcome.verdict != "ok"}
    # A trace would keep the sizes and indices that it was made with.
    read = [key for key, outcome in bad.items() if "Python looks at the data" in outcome.reason]
    assert {name for name, _ in read} == {"torchscript"}
    assert {key: outcome for key, outcome in bad.items() if key not in read} == {}


@pytest.mark.usefixtures("compilers")
def test_inputs_that_no_change_leaves_valid_are_no_failure(tmp_path: Path) -> None:
    for case in [case for case in cases(["node"]) if case.name in PICKY]:
        assert Attempt(case, tmp_path / case.name, ["module", "onnx"]).through("onnxruntime") == Outcome("ok"), (
            case.name
        )


@pytest.mark.usefixtures("processes")
def test_the_page_counts_and_tells_what_is_lost() -> None:
    rows = [
        Row("test_a", "node", ["Add"], "bare", "ok", ""),
        Row("test_a", "node", ["Add"], "onnxruntime", "failed", "onnxruntime: no 12 of <these>"),
        Row("test_b", "node", ["Add"], "bare", "failed", "no kernel"),
        Row("test_b", "node", ["Add"], "onnxruntime", "failed", "onnxruntime: no 3 of <these>"),
    ]
    assert lost(rows) == [rows[1]]
    lines = page(rows, ["bare", "onnxruntime", "tvm"]).splitlines()
    assert "| onnxruntime | 2 | 0 | 0 | 0 | 2 | 0 |" in lines
    assert r"| failed | 2 | onnxruntime: no # of \<these\> | Add | `test_a`, `test_b` |" in lines
    assert not [line for line in lines if "tvm" in line and line.startswith("|")]
