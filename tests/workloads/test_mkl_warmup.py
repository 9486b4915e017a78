"""The first call of an elementary function in a process gives what every other call gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from mlflow_ngraph.workloads import mkl_warmup

torch.set_num_threads(2)
mkl_warmup.warm_up()
for kind in (torch.float32, torch.float64):
    torch.manual_seed(0)
    numbers = torch.rand(1 << 17, dtype=kind) * 0.9 + 0.01
    for name in mkl_warmup.FUNCTIONS:
        function = getattr(torch, name)
        if not torch.equal(function(numbers), function(numbers)):
            print(name, kind)
"""


@pytest.mark.usefixtures("processes")
def test_first_calls_by_several_threads_are_exact() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        printed, errors = process.communicate(timeout=120)
        assert (process.returncode, printed) == (0, ""), errors
