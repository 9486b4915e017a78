"""Which compilers compile for another device is known, and said, before any work is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.host import isa
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import DeviceError, UnsupportedError

EXTENDED = {"graph_optimization_level": "extended"}


def there(device: str, accelerator: Any = "cpu") -> Target:
    return Target(accelerator=accelerator, build_for=device)


@pytest.mark.parametrize(
    ("compiler", "flags", "target"),
    [
        ("openvino", {}, there("xeon")),
        ("onnxruntime", EXTENDED, there("xeon")),
        ("torchscript", {}, there("xeon")),
        ("tvm", {"mcpu": "x86-64-v3"}, there("xeon:x86-64-v3")),
        ("tvm", {"mcpu": "x86-64-v2"}, there("xeon:x86-64-v4")),
        ("tensorrt-rtx", {}, there("gpu:sm120", "cuda")),
    ],
)
def test_these_compile_for_another_device(compiler: str, flags: dict[str, Any], target: Target) -> None:
    create(compiler, flags).check(target)


@pytest.mark.parametrize(
    ("compiler", "flags", "target", "reason"),
    [
        ("identity", {}, there("xeon"), "identity compiles nothing that could be taken to xeon"),
        ("torch-compile", {}, there("xeon"), "generates code for the processor or GPU that it finds"),
        ("torchscript", {}, there("gpu:sm89", "cuda"), "a trace is made on the GPU that runs it"),
        ("openvino", {"save": "blob"}, there("xeon"), "build for xeon with save=ir"),
        ("onnxruntime", {}, there("xeon"), "build for xeon with graph_optimization_level=extended"),
        ("onnxruntime", {}, there("gpu:sm89", "cuda"), "keeps nothing that a provider other than cpu compiles"),
        ("tvm", {}, there("xeon:x86-64-v3"), "with the flag mcpu=x86-64-v3"),
        ("tvm", {"mcpu": "x86-64-v3"}, there("xeon"), "is named twice"),
        ("tvm", {"mcpu": "x86-64-v4"}, there("xeon:x86-64-v3"), "does not run the code of mcpu=x86-64-v4"),
        ("tvm", {"mcpu": "x86-64-v3", "trials": 8}, there("xeon:x86-64-v3"), "a search measures on the device"),
        ("tvm", {}, there("gpu:sm89", "cuda"), "compiles kernels for the GPU that it finds"),
        ("tensorrt", {}, there("gpu:sm89", "cuda"), "times kernels on the GPU that an engine is for"),
        ("tensorrt-rtx", {}, there("gpu", "cuda"), "has to know the architecture of the GPU"),
    ],
)
def test_these_say_in_one_line_why_not(compiler: str, flags: dict[str, Any], target: Target, reason: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        create(compiler, flags).check(target)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_portable_engine_requires_no_instruction_set() -> None:
    assert "isa" in create("onnxruntime").requires(Target())
    assert "isa" not in create("onnxruntime", EXTENDED).requires(Target())


def test_code_for_a_level_requires_that_level_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = create("tvm", {"mcpu": "x86-64-v3"})
    built = compiler.requires(there("xeon:x86-64-v3"))
    assert built["isa"].endswith(" x86-64-v3")
    monkeypatch.setattr(probes, "levels", lambda: ("x86-64-v2", "x86-64-v3", "x86-64-v4"))
    assert compiler.requires(Target()) == built
    monkeypatch.setattr(probes, "levels", lambda: ("x86-64-v2",))
    assert compiler.requires(Target())["isa"] == isa()


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3", ("x86-64-v2",)),
        ("cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3 avx avx2 f16c fma bmi1 movbe abm", ("x86-64-v2",)),
        (
            "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3 avx avx2 f16c fma bmi1 bmi2 movbe abm",
            ("x86-64-v2", "x86-64-v3"),
        ),
        ("avx512f avx512bw avx512cd avx512dq avx512vl", ()),
        ("", ()),
    ],
)
def test_a_processor_has_the_levels_of_which_it_has_everything(
    tmp_path: Path, flags: str, levels: tuple[str, ...]
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n\n")
    assert probes.levels(cpuinfo) == levels


@pytest.mark.parametrize(
    ("text", "device", "architecture", "shown"),
    [
        ("gpu:sm89", "gpu", "sm89", "gpu:sm89"),
        ("gpu:SM_120", "gpu", "sm120", "gpu:sm120"),
        ("xeon:x86-64-v3", "xeon", "x86-64-v3", "xeon:x86-64-v3"),
        ("xeon", "xeon", "", "xeon"),
    ],
)
def test_a_device_elsewhere_is_read(text: str, device: str, architecture: str, shown: str) -> None:
    found = BuildTarget.parse(text)
    assert (found.device, found.architecture, str(found)) == (device, architecture, shown)


def test_what_is_no_architecture_is_refused() -> None:
    with pytest.raises(DeviceError, match="no architecture 'ada': a GPU has one such as sm89"):
        BuildTarget.parse("gpu:ada")
    assert BuildTarget.parse("gpu:sm120").compute_capability == (12, 0)
    assert BuildTarget.parse("xeon:x86-64-v3").compute_capability is None
