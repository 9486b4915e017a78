"""Modules and factories as people have them; as ``torch:tests.workloads.handed:<name>``."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Four numbers in, three out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(values)))


class Looks(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values if values.sum() > 0 else -values


class Frequencies(nn.Module):
    """Gives complex numbers."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(values)


def scripted() -> nn.Module:
    return torch.jit.script(Net())


def traced() -> nn.Module:
    return torch.jit.trace(Net().eval(), torch.ones(2, 4))


def frozen() -> nn.Module:
    return torch.jit.freeze(torch.jit.script(Net().eval()))


def scripted_within() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), torch.jit.script(Net()))


def compiled() -> nn.Module:
    return torch.compile(Net())


def compiled_within() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(torch.compile(Net())))


def compiled_in_place() -> nn.Module:
    net = Net()
    net.compile()
    net.first.forward = torch.compile(net.first.forward)
    return net


class CompiledForward(Net):
    @torch.compile
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values)


def parallel() -> nn.Module:
    return nn.DataParallel(Net())


def parallel_and_compiled_with_a_hook() -> nn.Module:
    net = nn.DataParallel(torch.compile(Net()))
    net.register_forward_hook(double)
    return net


def double(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def halve(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(value / 2 for value in args)


def hooked() -> nn.Module:
    net = Net()
    net.first.register_forward_hook(double)
    net.register_forward_pre_hook(halve)
    net.register_forward_hook(double)
    return net


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(values)))


class LazyByName(Lazy):
    def forward(self, *, values: torch.Tensor) -> torch.Tensor:  # type: ignore[override] # that is the point
        return super().forward(values)


class LazyForGood(Net):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.LazyLinear(2)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Net()


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(Net().eval(), {nn.Linear}, dtype=torch.qint8)


def parametrised() -> nn.Module:
    net = Net()
    nn.utils.parametrizations.weight_norm(net.first)
    nn.utils.parametrizations.orthogonal(net.second)
    return net


def weight_normed() -> nn.Module:
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(net.first)
    return net


def exported() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    return torch.export.export(Net().eval(), (torch.ones(2, 4),), dynamic_shapes=({0: batch},))


def exported_module() -> nn.Module:
    return exported().module()


def exported_within() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), exported().module())


class SparseProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", (torch.randn(6, 4) * (torch.rand(6, 4) > 0.5)).to_sparse())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.matrix, values.t()).t()


@torch.inference_mode()
def made_in_inference_mode() -> nn.Module:
    net = Net()
    net.second.weight = nn.Parameter(torch.randn(3, 5), requires_grad=False)
    return net


class Drawn(nn.Module):
    """Numbers that are neither parameters nor buffers, drawn by all three generators that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.plain = torch.randn(4) + torch.tensor(np.random.rand(4)).float() + random.random()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values) * self.plain


ready = Net()
"""An object, not something that makes one."""


def sets_everything() -> nn.Module:
    net = Net()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.backends.mha.set_fastpath_enabled(False)
    os.chdir("/")
    os.environ["HANDED_OVER"] = "yes"
    warnings.simplefilter("error")
    np.seterr(all="raise")
    logging.disable(logging.CRITICAL)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return net


def noisy() -> nn.Module:
    sys.stdout.write("on standard output\n")
    sys.stdout.flush()
    os.write(1, b'{"result": "not ours"}\n')
    return Net()


def starts_threads_and_processes() -> nn.Module:
    threading.Thread(target=time.sleep, args=(600,)).start()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    return Net()


def exits() -> nn.Module:
    raise SystemExit("no licence\nfound")


def interrupts() -> nn.Module:
    raise KeyboardInterrupt("not now")


def asks() -> nn.Module:
    key = input("Licence key? ")
    return Net() if key else nn.Identity()


class ExitsWhenCalled(Net):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        sys.exit("licence expired")


def needs(width: int) -> nn.Module:
    return nn.Linear(4, width)


def none() -> None:
    Net()


def a_class() -> type[nn.Module]:
    return Net


def with_inputs() -> tuple[nn.Module, torch.Tensor]:
    return Net(), torch.ones(2, 4)


def weights_alone() -> dict[str, torch.Tensor]:
    return Net().state_dict()


def doubled() -> nn.Module:
    return Net().double()
