"""TVM: the compiler adapter: checks availability and targets, compiles, loads and explains engines."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mlflow_ngraph.compilers.accelerator import require_gpu
from mlflow_ngraph.compilers.base import Availability, Build, Compiler, Engine, Flags, Occupation, Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import isa, package, with_cpp_compiler
from mlflow_ngraph.compilers.reasons import translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import DependencyError, UnsupportedError
from mlflow_ngraph.workloads.base import Format
from mlflow_ngraph_tvm import kernels
from mlflow_ngraph_tvm.flags import TVMFlags

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source

_INSTALL = "pip install ./plugins/tvm (in a checkout)"
_LIBRARY = "model.so"
_FFI = "0.1.14.post0"
_FFI_HINT = f"tuning is known to work with apache-tvm-ffi=={_FFI} and to crash with some later ones"
_TRIAL_SECONDS = 1.5


class TVM(Compiler[TVMFlags]):
    """Compiles ONNX into a shared library for one batch size: with the default pipeline, or with searched kernels.

    The default pipeline applies no schedules on a processor: expect code that is one to two orders of magnitude slower
    than eager. With ``trials`` MetaSchedule searches for a schedule of every kernel by measuring.
    """

    name: ClassVar[str] = "tvm"
    summary: ClassVar[str] = "Apache TVM: the default pipeline, or kernels found by a search"
    program: ClassVar[str] = "a shared library made by TVM"
    flags_type: ClassVar[type[Flags]] = TVMFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    accelerators: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    runtime_modules: ClassVar[tuple[str, ...]] = ("tvm", "tvm.relax")
    compile_modules: ClassVar[tuple[str, ...] | None] = ("onnx", "tvm", "tvm.relax.frontend.onnx")
    # TVM imports torch wherever it is installed, for an exchange of tensors that nothing here uses.
    blocked_modules: ClassVar[tuple[str, ...]] = ("torch",)

    @classmethod
    def availability(cls) -> Availability:
        availability = with_cpp_compiler(package("tvm", "apache-tvm", _INSTALL), "TVM links its engines with it")
        if not availability.available:
            return availability
        ffi = _ffi_version()
        if ffi is None:
            return Availability(False, availability.version, "the package apache-tvm-ffi is not installed", _INSTALL)
        if ffi != _FFI:
            return replace(availability, hint=f"{_FFI_HINT}, this is {ffi}")
        if find_spec("xgboost") is None:
            return replace(availability, hint=f"tuning with cost_model xgb needs xgboost: {_INSTALL}")
        return availability

    explains_elsewhere: ClassVar[bool] = True

    @property
    def searches(self) -> bool:
        return self.flags.trials > 0

    @property
    def occupies(self) -> Occupation:
        return "machine" if self.searches else "processor"

    @property
    def expected_compile_s(self) -> float:
        return 20.0 + _TRIAL_SECONDS * self.flags.trials if self.searches else 4.0

    @property
    def expected_slowdown(self) -> float:
        # A few hundred trials bring it near eager; a few dozen leave much to be found.
        return 60.0 if not self.searches else 2.0 if self.flags.trials >= 200 else 10.0

    def requires(self, target: Target) -> dict[str, str]:
        requirements = {
            "apache-tvm": self.availability().version or "",
            "apache-tvm-ffi": _ffi_version() or "",
            "isa": self._instructions(target),
        }
        if target.accelerator == "cuda":
            gpu = probes.gpu()
            requirements["gpu"] = gpu.compute_capability if gpu is not None else "none"
        return requirements

    def _instructions(self, target: Target) -> str:
        """x86-64 level that the engine needs, else all instruction sets of this machine."""
        level = self.flags.mcpu
        here = level if target.build_for else next((known for known in probes.levels() if known == level), "")
        return f"{platform.machine()} {level}" if here and _is_level(level) else isa()

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        if target.accelerator != "cpu":
            raise UnsupportedError(
                f"tvm compiles kernels for the GPU that it finds: it cannot compile here for {device}"
            )
        if self.searches:
            raise UnsupportedError(f"a search measures on the device: tvm builds here for {device} with trials=0 only")
        if platform.machine() != "x86_64":
            raise UnsupportedError(
                f"tvm builds for other processors on x86-64 only: it cannot compile here for {device}"
            )
        if not device.level or not _is_level(self.flags.mcpu):
            raise UnsupportedError(
                f"tvm builds for the level of x86-64 that is named twice, as in --build-for {device.device}:x86-64-v3 "
                "with the flag mcpu=x86-64-v3"
            )
        if self.flags.mcpu > device.level:
            raise UnsupportedError(f"{device} does not run the code of mcpu={self.flags.mcpu}")

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        self._check_dependencies()
        _set_threads(target.threads)
        gpu = None
        if target.accelerator == "cuda":
            gpu = _prepare_gpu(self.name, target)
            _choose_cuda_compiler(self.name)
        (batch,) = batch_sizes
        with translated_errors(self.name):
            from mlflow_ngraph_tvm.compilation import Compilation

            facts = Compilation(self.flags, target, gpu, bench).run(source, batch, directory, _LIBRARY)
        build = Build(facts, self.requires(target), "onnx")
        EngineSpec.of(self, build, source, batch_sizes, target, facts).write(directory)
        return build

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        on_gpu = target.accelerator == "cuda"
        if on_gpu != ("gpu_arch" in saved.facts):
            other = "cpu" if on_gpu else "cuda"
            raise UnsupportedError(f"the engine was compiled for {other}, not for {target.accelerator}")
        _set_threads(target.threads)
        if on_gpu:
            _prepare_gpu(self.name, target)
        import tvm
        import tvm_ffi
        from tvm import relax

        from mlflow_ngraph_tvm.engine import TVMEngine

        device = tvm.cuda(0) if on_gpu else tvm.cpu()
        with translated_errors(self.name):
            # TVM's own function keeps every library, with the weights in it, until the process ends.
            library = tvm_ffi.load_module(directory / _LIBRARY, keep_module_alive=False)
            machine = relax.VirtualMachine(library, device)
        return TVMEngine(
            machine,
            device,
            target.precision,
            {**saved.facts, "threads": int(tvm.runtime.num_threads())},
            synchronise=on_gpu,
            transfers_inside=target.transfers == "inside",
        )

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        return kernels.explain(directory, _LIBRARY)

    def _check_dependencies(self) -> None:
        if not self.searches:
            return
        ffi = _ffi_version()
        if ffi != _FFI:
            raise DependencyError(f"tvm: {_FFI_HINT}, this is {ffi}: {_INSTALL}")
        if self.flags.cost_model == "xgb" and find_spec("xgboost") is None:
            raise DependencyError(
                f"tvm: cost_model xgb needs the package xgboost: {_INSTALL}, or choose cost_model random"
            )


def _is_level(mcpu: str) -> bool:
    return mcpu.startswith("x86-64-v")


def _ffi_version() -> str | None:
    try:
        return version("apache-tvm-ffi")
    except PackageNotFoundError:
        return None


def _set_threads(threads: int | None) -> None:
    """Set the threads, which TVM reads once when its library is loaded; its default is half of the processors."""
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)


def _prepare_gpu(compiler: str, target: Target) -> probes.Gpu:
    """Check that TVM can use the GPU. Raises `UnsupportedError` if there is none, or TVM does not find it."""
    gpu = require_gpu(compiler, target)
    import tvm

    if not tvm.cuda(0).exist:
        # Without its CUDA runtime TVM would compile to source code that nothing can load.
        raise UnsupportedError(f"{compiler} does not find {gpu.name}: its CUDA runtime needs libcuda and libcudart")
    return gpu


def _choose_cuda_compiler(compiler: str) -> None:
    """Choose TVM's compiler for generated CUDA source. Raises `DependencyError` if none is installed."""
    if shutil.which("nvcc"):
        os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc"
    elif package("cuda.bindings", "cuda-bindings", "").available:
        os.environ["TVM_CUDA_COMPILE_MODE"] = "nvrtc"
    else:
        raise DependencyError(
            f"{compiler} on cuda compiles with nvcc or NVRTC: install the CUDA toolkit, or pip install cuda-python"
        )
