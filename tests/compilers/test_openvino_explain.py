from __future__ import annotations

import platform
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import isa
from mlflow_ngraph.compilers.openvino.inspection import kernels
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import UnsupportedError
from tests.support.installed import needs
from tests.support.onnx_models import residual_block

pytestmark = needs("openvino")

ONE = Target(threads=1)


def explained(directory: Path, target: Target = ONE, **flags: object) -> Explanation:
    (engine := directory / "engine").mkdir()
    compiler = create("openvino", flags)
    source = residual_block(directory)
    compiler.compile(source, [2], target, engine, Workbench(directory / "work"))  # type: ignore[arg-type]  # as far as asked
    return compiler.explain(engine, 2, target)


@pytest.mark.skipif(platform.machine() != "x86_64" or "avx2" not in isa(), reason="names kernels for AVX2 and later")
@pytest.mark.parametrize("save", ["ir", "blob"])
def test_convolutions_are_fused_with_relu_and_name_their_instruction_set(tmp_path: Path, save: str) -> None:
    found = explained(tmp_path, save=save)
    assert found.nodes_before == 8
    assert found.nodes_after == len(found.kernels) < 8
    assert found.facts == {"loaded_from": save, "inference_precision": "f32"}
    first, second = (kernel for kernel in found.kernels if kernel.operation == "Convolution")
    assert {"conv0", "relu0"} <= set(first.fused)
    assert "conv1" in second.fused or second.fused == ()
    assert "avx" in first.implementation
    assert first.precision == "f32"
    assert first.layout
    assert all(kernel.microseconds is not None for kernel in found.kernels)
    reorders = [kernel for kernel in found.kernels if kernel.operation == "Reorder"]
    assert found.layout_changes == len(reorders)


def test_a_reduced_precision_shows_in_the_kernels(tmp_path: Path) -> None:
    try:
        found = explained(tmp_path, Target(threads=1, precision="bf16"))
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert found.facts["inference_precision"] == "bf16"
    assert found.count("precision")["bf16"] >= 2
    assert any("bf16" in name for name in found.count("implementation"))


def test_only_what_is_executed_is_a_step_in_the_order_of_execution() -> None:
    said = {"originalLayersNames": "b,c", "layerType": "Convolution", "primitiveType": "brgconv_avx512_f32"}
    steps = [
        {"name": "last", "execOrder": "10", "execTimeMcs": "7", "layerType": "Reorder"},
        {"name": "weights", "execOrder": "0", "execTimeMcs": "not_executed", "layerType": "Const"},
        {"name": "first", "execOrder": "9", "execTimeMcs": "3", **said},
    ]
    first, last = kernels(steps)
    assert (first.name, first.fused, first.microseconds) == ("first", ("b", "c"), 3.0)
    assert first.implementation == "brgconv_avx512_f32"
    assert (last.name, last.fused, last.operation) == ("last", (), "Reorder")
