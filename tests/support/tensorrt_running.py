"""The part of the stand-in for TensorRT that loads and runs engines."""

# ruff: noqa: N802 - methods are called by what they stand for
from __future__ import annotations

import json
from base64 import b64decode
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.reference

from tests.support.cuda_standin import CudaStandIn
from tests.support.tensorrt_listed import DTYPES, NUMPY, Listed, Module, shape_of


class Running(Module):
    """The behaviour of ``Runtime`` and of what comes from it."""

    module: ModuleType
    cuda: CudaStandIn
    refuses_capture: bool

    def _Runtime_deserialize_cuda_engine(self, runtime: Listed, content: bytes) -> Listed | None:
        logger, trt_error = runtime._state["logger"], self.module.ILogger.ERROR
        try:
            said = json.loads(content)
        except ValueError:
            logger.log(trt_error, "Serialization assertion magicTagRead == kMAGIC_TAG failed")
            return None
        if said["version"] != self.module.__version__:
            logger.log(trt_error, "Version tag does not match")
            return None
        if "VERSION_COMPATIBLE" in said["flags"] and not runtime._state.get("engine_host_code_allowed"):
            logger.log(trt_error, "host code is not allowed")
            return None
        model = onnx.load_from_string(b64decode(said["model"]))
        return Listed(self, "ICudaEngine", said=said, model=model, logger=logger)

    def _get_ICudaEngine_num_layers(self, engine: Listed) -> int:
        return len(engine._state["model"].graph.node)

    def _ICudaEngine_get_tensor_dtype(self, engine: Listed, name: str) -> Any:
        graph = engine._state["model"].graph
        (value,) = [value for value in (*graph.input, *graph.output) if value.name == name]
        return self.module.DataType[DTYPES[value.type.tensor_type.elem_type]]

    def _ICudaEngine_create_execution_context(self, engine: Listed) -> Listed:
        return Listed(self, "IExecutionContext", engine=engine, shapes={}, addresses={}, ran=set())

    def _ICudaEngine_create_engine_inspector(self, engine: Listed) -> Listed:
        return Listed(self, "EngineInspector", engine=engine)

    def _EngineInspector_get_engine_information(self, inspector: Listed, form: Any) -> str:
        assert form == self.module.LayerInformationFormat.JSON
        engine, context = inspector._state["engine"], inspector._state["execution_context"]
        assert context._state["shapes"], "the context has no shapes"
        nodes = engine._state["model"].graph.node
        if engine._state["said"]["details"] != "DETAILED":
            return json.dumps({"Layers": [node.name for node in nodes]})
        reformat = {"Name": "Reformatting CopyNode for Input Tensor 0", "LayerType": "Reformat", "Outputs": []}
        layers = [
            {
                "Name": f"{first.name} + {second.name}",
                "LayerType": "CaskConvolution",
                "Outputs": [{"Name": "y", "Format/Datatype": "Row major linear FP16 format"}],
                "TacticName": "sm80_xmma_fprop",
                "Metadata": f"[ONNX Layer: {first.name}]\x1e[ONNX Layer: {second.name}]",
            }
            for first, second in zip(nodes[::2], nodes[1::2], strict=False)
        ]
        return json.dumps({"Layers": [reformat, *layers], "Bindings": []})

    def _IExecutionContext_set_input_shape(self, context: Listed, name: str, shape: tuple[int, ...]) -> bool:
        graph = context._state["engine"]._state["model"].graph
        (declared,) = [shape_of(value) for value in graph.input if value.name == name]
        profile = context._state["engine"]._state["said"]["profile"].get(name)
        fits = all(want in (-1, size) for want, size in zip(declared, shape, strict=True))
        if not fits or (
            profile and not all(a <= b <= c for a, b, c in zip(profile[0], shape, profile[1], strict=True))
        ):
            context._state["engine"]._state["logger"].log(self.module.ILogger.ERROR, f"{name}: shape is outside")
            return False
        context._state["shapes"][name] = tuple(shape)
        return True

    def _IExecutionContext_infer_shapes(self, context: Listed) -> list[str]:
        graph = context._state["engine"]._state["model"].graph
        return [value.name for value in graph.input if value.name not in context._state["shapes"]]

    def _IExecutionContext_get_tensor_shape(self, context: Listed, name: str) -> tuple[int, ...]:
        return self._compute(context, None)[name].shape

    def _IExecutionContext_set_tensor_address(self, context: Listed, name: str, address: int) -> bool:
        assert address not in self.cuda.pinned, "the address of the host's memory"
        context._state["addresses"][name] = address
        return True

    def _IExecutionContext_execute_async_v3(self, context: Listed, stream: int) -> bool:
        chosen = self.cuda.stream(stream)
        if chosen.recording is not None:
            assert context._state["ran"], "the first run of a shape cannot be recorded"
            if self.refuses_capture:
                context._state["engine"]._state["logger"].log(self.module.ILogger.ERROR, "cannot be captured")
                return False
        context._state["ran"].add(stream)
        chosen.put(lambda: self._run(context))
        return True

    def _run(self, context: Listed) -> None:
        addresses = context._state["addresses"]
        for name, array in self._compute(context, addresses).items():
            memory = self.cuda.view(addresses[name])
            np.frombuffer(memory, array.dtype, array.size)[:] = array.ravel()

    def _compute(self, context: Listed, addresses: dict[str, int] | None) -> dict[str, Any]:
        model = context._state["engine"]._state["model"]
        inputs = {}
        for value in model.graph.input:
            shape = context._state["shapes"][value.name]
            dtype = np.dtype(NUMPY[DTYPES[value.type.tensor_type.elem_type]])
            if addresses is None:
                inputs[value.name] = np.zeros(shape, dtype)
            else:
                memory = self.cuda.view(addresses[value.name])
                inputs[value.name] = np.frombuffer(memory, dtype, int(np.prod(shape))).reshape(shape)
        names = [value.name for value in model.graph.output]
        found = onnx.reference.ReferenceEvaluator(model).run(names, inputs)
        return dict(zip(names, found, strict=True))
