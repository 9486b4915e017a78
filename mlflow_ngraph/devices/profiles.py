"""The built-in device profiles."""

from __future__ import annotations

import platform

from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.base import DeviceProfile, Fitness

__all__ = ["DeviceProfile", "Gpu", "Host", "Orin", "Xeon"]

_CPU_COMPILERS = ("identity", "torchscript", "torch-compile", "onnxruntime", "openvino", "tvm")


class Host(DeviceProfile):
    """This machine, whatever it is; engines run on its CPU."""

    name = "host"
    summary = "this machine's CPU, whatever it is"
    compilers = _CPU_COMPILERS

    def fitness(self) -> Fitness:
        if platform.system() != "Linux":
            return Fitness(problems=(f"needs Linux: this is {platform.system()}",))
        return Fitness()


class Xeon(DeviceProfile):
    """A server with an x86-64 CPU and no GPU."""

    name = "xeon"
    summary = "x86-64 server CPU under Linux"
    processor = "Xeon"
    compilers = _CPU_COMPILERS
    project = "entrypoints/xeon"

    def fitness(self) -> Fitness:
        machine = f"{platform.system()} on {platform.machine()}"
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            return Fitness(problems=(f"needs Linux on x86-64: this is {machine}; use device 'host'",))
        cpu = probes.cpu()
        if cpu.vendor != "GenuineIntel" or self.processor not in cpu.model:
            return Fitness(warnings=(f"this CPU is no Intel Xeon but {cpu.label}; numbers are those of this CPU",))
        return Fitness()


class Gpu(DeviceProfile):
    """A workstation or server with an NVIDIA GPU."""

    name = "gpu"
    summary = "NVIDIA GPU in an x86-64 machine under Linux"
    accelerator = "cuda"
    compilers = ("identity", "torchscript", "torch-compile", "onnxruntime", "tensorrt", "tvm")
    project = "entrypoints/gpu"

    def fitness(self) -> Fitness:
        obstacle = probes.gpu_obstacle()
        if obstacle:
            return Fitness(
                problems=(f"needs an NVIDIA GPU: none found ({obstacle}); install its driver, or use device 'host'",)
            )
        if platform.machine() != "x86_64":
            return Fitness(warnings=(f"this machine is {platform.machine()}, not x86-64",))
        return Fitness()


class Orin(DeviceProfile):
    """A Jetson with an Orin module and its JetPack."""

    name = "orin"
    summary = "NVIDIA Jetson Orin with JetPack"
    accelerator = "cuda"
    compilers = ("identity", "torchscript", "torch-compile", "onnxruntime", "tensorrt", "tvm")
    project = "entrypoints/orin"

    def fitness(self) -> Fitness:
        board = probes.device_tree_model()
        if platform.machine() != "aarch64" or not ("Jetson" in board or probes.jetpack_release()):
            machine = board or platform.machine()
            return Fitness(problems=(f"needs an NVIDIA Jetson: this is {machine}; use device 'host'",))
        warnings = []
        if "Orin" not in board:
            warnings.append(f"this board is no Orin but {board or 'unnamed'}")
        if not probes.jetpack_release():
            warnings.append("no JetPack release found (/etc/nv_tegra_release)")
        return Fitness(warnings=tuple(warnings))
