"""The three adapters on PyTorch's runtime. Each test has a process of its own, because inference mode belongs to one."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Stages, Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import CompileError, FlagError, UnsupportedError
from mlflow_ngraph.testing.steps import in_fresh_process
from mlflow_ngraph.workloads.materials import Source

TARGET = Target(threads=1)


def load_where_materials_are_gone(engine: Path) -> str:
    return create("identity").load(engine, 1, TARGET).precision


def test_an_identity_engine_needs_no_materials(prepared: Path, tmp_path: Path) -> None:
    materials, engine = tmp_path / "materials", tmp_path / "engine"
    shutil.copytree(prepared / "cnn", materials)
    engine.mkdir()
    create("identity").compile(Source(materials), [1, 3], TARGET, engine, Stages())
    shutil.rmtree(materials)
    assert in_fresh_process(load_where_materials_are_gone, engine) == "fp32"
    assert not list(engine.rglob("*.npz"))
    assert not list(engine.rglob("*.onnx"))


def modes_over_time(materials: Path, engine: Path) -> list[bool]:
    import torch

    compiler, source = create("identity"), Source(materials)
    seen = [torch.is_inference_mode_enabled()]
    first = compiler.load(engine, 1, TARGET)
    second = compiler.load(engine, 3, TARGET)
    seen.append(torch.is_inference_mode_enabled())
    first.close()
    first.close()
    second.bind(source.example(3)).call()
    seen.append(torch.is_inference_mode_enabled())
    second.close()
    seen.append(torch.is_inference_mode_enabled())
    return seen


def test_inference_mode_is_on_as_long_as_an_engine_is_open(cnn: Source, tmp_path: Path) -> None:
    create("identity").compile(cnn, [1, 3], TARGET, tmp_path, Stages())
    assert in_fresh_process(modes_over_time, cnn.directory, tmp_path) == [False, True, True, False]


def load_with_rounded_fp32(engine: Path) -> None:
    import os

    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"
    create("identity").load(engine, 1, TARGET)


def test_fp32_that_the_environment_rounds_is_refused(cnn: Source, tmp_path: Path) -> None:
    create("identity").compile(cnn, [1], TARGET, tmp_path, Stages())
    with pytest.raises(UnsupportedError, match="ONEDNN_DEFAULT_FPMATH_MODE=BF16"):
        in_fresh_process(load_with_rounded_fp32, tmp_path)


def weights_layout(engine: Path) -> tuple[object, bool]:
    import torch

    loaded = create("identity", {"memory_format": "channels_last"}).load(engine, 1, TARGET)
    module = loaded._run  # type: ignore[attr-defined]
    return loaded.flags["memory_format"], module[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_takes_effect(cnn: Source, tmp_path: Path) -> None:
    create("identity").compile(cnn, [1], TARGET, tmp_path, Stages())
    assert in_fresh_process(weights_layout, tmp_path) == ("channels_last", True)


def script_without_warnings(materials: Path, engine: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        create("torchscript").compile(Source(materials), [1], TARGET, engine, Stages())
        create("torchscript").load(engine, 1, TARGET)
    return [str(warning.message) for warning in caught if "torch.jit" in str(warning.message)]


def test_the_notice_that_torchscript_is_deprecated_is_not_repeated(cnn: Source, tmp_path: Path) -> None:
    assert in_fresh_process(script_without_warnings, cnn.directory, tmp_path) == []


def test_optimize_for_inference_needs_a_frozen_graph() -> None:
    with pytest.raises(FlagError, match="optimize_for_inference needs freeze"):
        create("torchscript", {"freeze": False, "optimize_for_inference": True})


def compile_and_read_flags(materials: Path, engine: Path) -> tuple[object, object]:
    build = create("torch-compile").compile(Source(materials), [3], TARGET, engine, Stages())
    return build.flags["dynamic_batch"], create("torch-compile").load(engine, 3, TARGET).flags["dynamic_batch"]


@pytest.mark.slow
def test_a_fixed_batch_size_is_compiled_for_it_alone(fixed: Source, tmp_path: Path) -> None:
    assert in_fresh_process(compile_and_read_flags, fixed.directory, tmp_path) == (False, False)
    with pytest.raises(CompileError, match="batch size 1"):
        create("torch-compile").load(tmp_path, 1, TARGET)


def compile_and_list_imports(materials: Path, engine: Path) -> None:
    create("torch-compile").compile(Source(materials), [3], TARGET, engine, Stages())


def loaded_modules(engine: Path) -> bool:
    import sys

    create("torch-compile").load(engine, 3, TARGET)
    return "torch._inductor" in sys.modules


@pytest.mark.slow
def test_loading_a_package_does_not_import_the_compiler(fixed: Source, tmp_path: Path) -> None:
    in_fresh_process(compile_and_list_imports, fixed.directory, tmp_path)
    assert in_fresh_process(loaded_modules, tmp_path) is False
