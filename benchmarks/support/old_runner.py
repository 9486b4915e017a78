"""Runs models with the release of a compiler that is installed beside it: a script for another environment, without this package.

``python old_runner.py RUNTIME`` reads lines of JSON: ``{"model": FILE}`` compiles a model, ``{"inputs": FILE, "outputs": FILE}``
runs the last one on the arrays of a file, in their order. It answers each with ``{}`` or ``{"error": REASON}``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Run = Callable[[Sequence[Any]], Sequence[Any]]


def main() -> None:
    """Answer until the input ends."""
    compile_ = {"onnxruntime": _onnxruntime, "openvino": _openvino, "tvm": _tvm}[sys.argv[1]]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # runtimes print whatever they like
    run: Run | None = None
    for line in sys.stdin:
        asked, answer = json.loads(line), {}
        try:
            if run is None or "model" in asked:
                run = compile_(asked["model"])
            else:
                with np.load(asked["inputs"]) as given:
                    inputs = [given[name] for name in given.files]
                np.savez(asked["outputs"], *run(inputs))
        except Exception as error:  # noqa: BLE001 - a runtime raises anything
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


def _onnxruntime(model: str) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def _openvino(model: str) -> Run:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    request = compiled.create_infer_request()

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        request.infer(dict(enumerate(inputs)))
        return [np.array(request.get_output_tensor(index).data) for index in range(len(compiled.outputs))]

    return run


def _tvm(model: str) -> Run:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(model))
    executable = tvm.compile(module, tvm.target.Target("llvm"), relax_pipeline=relax.get_pipeline("default_build"))
    machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        found = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
        found = [found] if isinstance(found, tvm.runtime.Tensor) else list(found)
        return [array.numpy() for array in found]

    return run


if __name__ == "__main__":
    main()
