"""Write a folder that shows a compiler's authors the wrong model, and run its script. For child processes only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from mlflow_ngraph import credentials
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph_bisect.program import Program
from mlflow_ngraph_bisect.search import WrongPart

MODEL, DATA, SCRIPT = "model", "data.npz", "repro.py"
_SCRIPT_S = 300.0
_SHOWN = 1
"""Exit code of a script that shows that an output is wrong."""

_FRAME = Template('''\
"""$title

Needs $package alone. Prints the outputs and what they should be; exit code 1: an output is wrong.
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
data = np.load(HERE / "data.npz")
inputs = [data[f"input_{index}"] for index in range($inputs)]


def run(inputs):
$body

def difference(output, right):
    if output.shape != right.shape:
        return np.inf
    finite = np.isfinite(right)
    with np.errstate(invalid="ignore"):
        off = np.abs(output.astype(np.float64) - right.astype(np.float64))[finite]
    return float(np.max(np.nan_to_num(off, nan=np.inf), initial=0))


wrong = False
outputs = run(inputs)
for index in $wrong:
    output, engine, right = outputs[index], data[f"engine_{index}"], data[f"reference_{index}"]
    off, reported = difference(output, right), difference(engine, right)
    print(f"output {index}: {output.ravel()[:8]}")
    print(f"right:    {right.ravel()[:8]}")
    print(f"largest difference: {off}; it was {reported} when this was written")
    wrong |= off > 0 and off >= reported / 2
raise SystemExit(int(wrong))
''')

_BODIES: Mapping[str, str] = {
    "onnxruntime": """\
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.$level
    session = ort.InferenceSession(str(HERE / "model.onnx"), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs)))
""",
    "openvino": """\
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(str(HERE / "model.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "$hint"})
    found = compiled(inputs)
    return [found[port] for port in compiled.outputs]
""",
    "tvm": """\
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(str(HERE / "model.onnx")))
    with tvm.transform.PassContext(opt_level=$opt_level):
        executable = tvm.compile(module, tvm.target.Target("llvm"), relax_pipeline=relax.get_pipeline("default_build"))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*(tvm.runtime.tensor(array) for array in inputs))
    found = [found] if isinstance(found, tvm.runtime.Tensor) else list(found)
    return [array.numpy() for array in found]
""",
    "torchscript": """\
    import torch

    given = tuple(map(torch.tensor, inputs))
    with torch.no_grad():
        module = torch.jit.trace(torch.export.load(HERE / "model.pt2").module(), given, check_trace=False)
        module = torch.jit.freeze(module.eval())
        for _ in range(3):
            found = module(*given)
    return [tensor.numpy() for tensor in (found if isinstance(found, tuple) else (found,))]
""",
    "torch-compile": """\
    import torch

    given = tuple(map(torch.tensor, inputs))
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(torch.export.load(HERE / "model.pt2"))
        found = torch._inductor.aoti_load_package(package)(*given)
    return [tensor.numpy() for tensor in (found if isinstance(found, (tuple, list)) else (found,))]
""",
}
_LEVELS = {"none": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED"}
_HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


def write(
    program: Program,
    found: WrongPart,
    directory: Path,
    compiler: str,
    flags: Mapping[str, Any],
    precision: str,
    why: str,
) -> None:
    """Write the model with its inputs, the engine's outputs and the right ones, and a script that shows both.

    ``why`` describes the error in a sentence.
    """
    directory.mkdir(parents=True, exist_ok=True)
    program.save(found.part, directory / f"{MODEL}{program.suffix}")
    arrays: dict[str, Any] = {}
    for index, array in enumerate(found.part.inputs.values()):
        arrays[f"input_{index}"] = array
    for index, (engine, exact) in enumerate(zip(found.outputs, found.exact, strict=True)):
        arrays[f"engine_{index}"], arrays[f"reference_{index}"] = engine, exact
    np.savez(directory / DATA, **arrays)
    body = _BODIES.get(compiler)
    if body is None:
        return
    version = COMPILERS.get(compiler).availability().version
    filled = Template(body).substitute(
        level=_LEVELS.get(str(flags.get("graph_optimization_level")), "ORT_ENABLE_ALL"),
        hint=_HINTS.get(precision, "f32"),
        opt_level=flags.get("opt_level", 3),
    )
    script = _FRAME.substitute(
        title=f"{why}: {compiler} {version}.",
        package=_package(compiler),
        inputs=len(found.part.inputs),
        wrong=[index for index, name in enumerate(found.part.outputs) if name in found.wrong],
        body=filled,
    )
    (directory / SCRIPT).write_text(script, encoding="utf-8")


def shows(directory: Path) -> bool | None:
    """True if the script shows a wrong output when run by itself; None where there is none."""
    if not (directory / SCRIPT).is_file():
        return None
    try:
        ended = subprocess.run(
            [sys.executable, SCRIPT],
            cwd=directory,
            capture_output=True,
            timeout=_SCRIPT_S,
            check=False,
            env=credentials.clean_environment(),
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == _SHOWN and b"largest difference" in ended.stdout


def _package(compiler: str) -> str:
    """Package that the script imports besides NumPy."""
    return {"torchscript": "torch", "torch-compile": "torch", "tvm": "apache-tvm and onnx"}.get(compiler, compiler)
