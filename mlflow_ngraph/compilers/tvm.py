"""Apache TVM: the Relax compiler's default pipeline, without a search for schedules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Invocation,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.host import isa, package, with_cpp_compiler
from mlflow_ngraph.compilers.reasons import reported
from mlflow_ngraph.compilers.saved import Saved
from mlflow_ngraph.devices.processors import available
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

_INSTALL = "pip install 'mlflow-ngraph[tvm]'"
_LIBRARY = "model.so"
_FFI = "0.1.14.post0"
_FFI_HINT = f"tuning is known to work with apache-tvm-ffi=={_FFI} and to crash with some later ones"


class TVMFlags(Flags):
    """Options of TVM."""

    opt_level: int = Field(3, ge=0, le=3)
    """Which graph passes run; 3 runs all that are safe."""
    mcpu: str = Field("native", pattern=r"^[A-Za-z0-9_.+-]+$")
    """The processor to generate code for, under LLVM's name; ``native`` is the one of this machine."""


class TVM(Compiler[TVMFlags]):
    """Compiles ONNX with the default pipeline into a shared library, for one batch size.

    The pipeline applies no schedules: expect code that is one to two orders of magnitude slower than eager.
    """

    name: ClassVar[str] = "tvm"
    summary: ClassVar[str] = "Apache TVM's default pipeline, untuned"
    flags_type: ClassVar[type[Flags]] = TVMFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    runtime_modules: ClassVar[tuple[str, ...]] = ("tvm", "tvm.relax")
    compile_modules: ClassVar[tuple[str, ...] | None] = ("onnx", "tvm", "tvm.relax.frontend.onnx")
    # TVM imports torch wherever it is installed, for an exchange of tensors that nothing here uses.
    blocked_modules: ClassVar[tuple[str, ...]] = ("torch",)

    @classmethod
    def availability(cls) -> Availability:
        found = with_cpp_compiler(package("tvm", "apache-tvm", _INSTALL), "TVM links its engines with it")
        if not found.available:
            return found
        try:
            ffi = version("apache-tvm-ffi")
        except PackageNotFoundError:
            return Availability(False, found.version, "the package apache-tvm-ffi is not installed", _INSTALL)
        return found if ffi == _FFI else replace(found, hint=f"{_FFI_HINT}, this is {ffi}")

    @property
    def expected_compile_s(self) -> float:
        return 4.0

    @property
    def expected_slowdown(self) -> float:
        return 60.0

    def requires(self, target: Target) -> dict[str, str]:
        return {"apache-tvm": self.availability().version or "", "isa": isa()}

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        _set_threads(target.threads)
        import onnx
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        (batch,) = batch_sizes
        model = source.onnx(batch)
        shapes = {spec.name: list(spec.resolve(batch)) for spec in source.inputs}
        host = self._host(target)
        with reported(self.name):
            with bench.stage("convert"):
                module = from_onnx(onnx.load(str(model)), shape_dict=shapes)
            with bench.stage("compile"), tvm.transform.PassContext(opt_level=self.flags.opt_level):
                executable = tvm.compile(module, tvm.target.Target(host))
            with bench.stage("save"):
                executable.export_library(str(directory / _LIBRARY))
        facts: dict[str, FlagValue] = {
            "opt_level": self.flags.opt_level,
            "mcpu": host["mcpu"],
            "num_cores": host["num-cores"],
        }
        Saved.of(self.name, source, target, facts).write(directory)
        return Build(facts, self.requires(target), "onnx")

    def _host(self, target: Target) -> dict[str, Any]:
        """The target in TVM's words, with the features of the processor that LLVM finds here."""
        from tvm.target import codegen

        native = codegen.llvm_get_system_cpu()
        return {
            "kind": "llvm",
            "mcpu": str(native) if self.flags.mcpu == "native" else self.flags.mcpu,
            "num-cores": target.threads or available(),
        }

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        saved = Saved.read(directory, self.name, target)
        _set_threads(target.threads)
        import tvm
        from tvm import relax

        with reported(self.name):
            machine = relax.VirtualMachine(tvm.runtime.load_module(str(directory / _LIBRARY)), tvm.cpu())
        return _TVMEngine(machine, target.precision, {**saved.facts, "threads": int(tvm.runtime.num_threads())})


def _set_threads(threads: int | None) -> None:
    """TVM reads it once, when its library is loaded; by default it takes half of the processors."""
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)


class _TVMEngine(Engine):
    def __init__(self, machine: Any, precision: Precision, flags: Mapping[str, FlagValue]) -> None:
        super().__init__(precision, flags)
        self._machine = machine
        self._bindings = 0

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        import tvm

        # A copy in TVM's own memory, because its kernels count on 64-byte alignment.
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in inputs]
        self._bindings += 1
        name = f"bound_{self._bindings}"
        # A closure inside the virtual machine: calling it converts no arguments.
        self._machine.save_function("main", name, *tensors)
        run = self._machine[name]
        last: Any = None

        def call() -> None:
            nonlocal last
            last = run()

        def outputs() -> list[NDArray[np.generic]]:
            return [np.array(tensor.numpy()) for tensor in ([last] if hasattr(last, "numpy") else last)]

        return Invocation(call, outputs)

    def close(self) -> None:
        self._machine = None
