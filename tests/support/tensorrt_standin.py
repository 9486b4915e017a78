"""Stands in for TensorRT, which runs nowhere without its libraries and a GPU.

Its classes have the members that the listing of a real version has, and nothing else: any other name is an
AttributeError, a property that is read-only there is read-only here, and a call has to fit one of the listed
signatures. Behind the names there is just enough of TensorRT's behaviour that the order of the calls matters: networks
come from ONNX, an engine computes with ONNX's reference implementation on the memory of `cuda_standin`. It proves
names, signatures and order, and nothing about what the real TensorRT makes of them.
"""

# ruff: noqa: N802 - methods are called by what they stand for
from __future__ import annotations

import enum
import json
from base64 import b64encode
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from tests.support.cuda_standin import CudaStandIn
from tests.support.tensorrt_listed import DTYPES, LISTINGS, NUMPY, Listed, Memory, fits, shape_of
from tests.support.tensorrt_running import Running

_LAYERS = {"Conv": "CONVOLUTION", "MatMul": "MATRIX_MULTIPLY", "Gemm": "MATRIX_MULTIPLY", "Cast": "CAST"}


class TensorRTStandIn(Running):
    """The module, and what a test wants to know of it."""

    def __init__(self, version: str, cuda: CudaStandIn) -> None:
        self.listing = LISTINGS[version]
        self.cuda = cuda
        self.used: set[tuple[str, str]] = set()
        self.builds: list[dict[str, Any]] = []
        self.refuses_to_build = ""
        self.refuses_operator = ""
        self.refuses_capture = False
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens during a build."""
        self.module = ModuleType("tensorrt")
        self.module.__spec__ = ModuleSpec("tensorrt", None)
        self.module.__version__ = version  # type: ignore[attr-defined]
        for name, members in self.listing["enums"].items():
            setattr(self.module, name, enum.IntEnum(name, {member: index for index, member in enumerate(members)}))
        self.module.ILogger = self._logger_class()  # type: ignore[attr-defined]
        for name in ("Builder", "OnnxParser", "Runtime"):
            setattr(self.module, name, self._constructor(name))
        self.module.init_libnvinfer_plugins = self._plugins  # type: ignore[attr-defined]
        self.module.nptype = lambda dtype: NUMPY[dtype.name]  # type: ignore[attr-defined]
        assert {name for name in vars(self.module) if not name.startswith("_")} <= set(self.listing["top"])

    def member(self, kind: str, name: str) -> Any:
        members = self.listing["classes"][kind]
        if name not in members:
            raise AttributeError(f"TensorRT {self.module.__version__}: {kind} has no {name}")
        self.used.add((kind, name))
        return members[name]

    def check_call(self, kind: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        signatures = self.listing["classes"][kind][name]
        assert any(fits(signature, arguments, named) for signature in signatures), (kind, name, arguments, signatures)

    def _logger_class(self) -> type:
        class ILogger:
            Severity = enum.IntEnum(
                "Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4}
            )
            INTERNAL_ERROR = Severity.INTERNAL_ERROR
            ERROR = Severity.ERROR
            WARNING = Severity.WARNING

            def __init__(self) -> None:
                self.ready = True

        return ILogger

    def _constructor(self, kind: str) -> Callable[..., Listed]:
        def construct(*arguments: Any) -> Listed:
            self.check_call(kind, "__init__", arguments, {})
            logger = arguments[-1]
            assert isinstance(logger, self.module.ILogger), "not a logger"
            assert logger.ready, "the logger's own __init__ was not called"
            state: dict[str, Any] = {"logger": logger}
            if kind == "OnnxParser":
                state.update(network=arguments[0], errors=[])
            return Listed(self, kind, **state)

        return construct

    def _plugins(self, logger: Any, namespace: str) -> bool:
        assert isinstance(logger, self.module.ILogger)
        assert namespace == ""
        return True

    def _Builder_create_network(self, builder: Listed, flags: int = 0) -> Listed:
        kinds = self.module.NetworkDefinitionCreationFlag
        assert flags == 1 << int(kinds.STRONGLY_TYPED), "the network is not strongly typed"
        return Listed(self, "INetworkDefinition", logger=builder._state["logger"], layers=[], inputs=[], outputs=[])

    def _Builder_create_builder_config(self, builder: Listed) -> Listed:
        return Listed(
            self,
            "IBuilderConfig",
            flags={"TF32"},
            workspace=8 << 30,
            profiles=[],
            cache=None,
            hardware_compatibility_level=self.module.HardwareCompatibilityLevel.NONE,
            builder_optimization_level=3,
            profiling_verbosity=self.module.ProfilingVerbosity.LAYER_NAMES_ONLY,
        )

    def _Builder_create_optimization_profile(self, builder: Listed) -> Listed:
        return Listed(self, "IOptimizationProfile", shapes={})

    def _IOptimizationProfile_set_shape(self, profile: Listed, name: str, low: Any, best: Any, high: Any) -> None:
        assert all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))
        profile._state["shapes"][name] = (tuple(low), tuple(high))

    def _IBuilderConfig_add_optimization_profile(self, config: Listed, profile: Listed) -> int:
        config._state["profiles"].append(profile._state["shapes"])
        return len(config._state["profiles"]) - 1

    def _IBuilderConfig_set_flag(self, config: Listed, flag: Any) -> None:
        config._state["flags"].add(flag.name)

    def _IBuilderConfig_clear_flag(self, config: Listed, flag: Any) -> None:
        config._state["flags"].discard(flag.name)

    def _IBuilderConfig_get_flag(self, config: Listed, flag: Any) -> bool:
        return flag.name in config._state["flags"]

    def _IBuilderConfig_set_memory_pool_limit(self, config: Listed, pool: Any, size: int) -> None:
        assert pool == self.module.MemoryPoolType.WORKSPACE
        config._state["workspace"] = size

    def _IBuilderConfig_get_memory_pool_limit(self, config: Listed, pool: Any) -> int:
        return int(config._state["workspace"])

    def _IBuilderConfig_create_timing_cache(self, config: Listed, content: bytes) -> Listed | None:
        text = bytes(content).decode(errors="replace")
        if text and not text.startswith("timings:"):
            return None
        return Listed(self, "ITimingCache", timings=set(text.removeprefix("timings:").split()))

    def _IBuilderConfig_set_timing_cache(self, config: Listed, cache: Listed, ignore_mismatch: bool) -> bool:
        assert cache._kind == "ITimingCache"
        assert ignore_mismatch is False
        config._state["cache"] = cache
        return True

    def _IBuilderConfig_get_timing_cache(self, config: Listed) -> Listed:
        return config._state["cache"]

    def _ITimingCache_combine(self, cache: Listed, other: Listed, ignore_mismatch: bool) -> bool:
        cache._state["timings"] |= other._state["timings"]
        return True

    def _ITimingCache_serialize(self, cache: Listed) -> Memory:
        return Memory(("timings:" + " ".join(sorted(cache._state["timings"]))).encode())

    def _OnnxParser_parse(self, parser: Listed, content: bytes, path: str | None = None) -> bool:
        model = onnx.shape_inference.infer_shapes(onnx.load_from_string(content), data_prop=True)
        if path is not None:
            onnx.load_external_data_for_model(model, str(Path(path).parent))
        network = parser._state["network"]._state
        for node in model.graph.node:
            if node.op_type == self.refuses_operator:
                parser._state["errors"].append(Listed(self, "ParserError", node=node))
                return False
        graph = model.graph
        types = {
            value.name: DTYPES[value.type.tensor_type.elem_type]
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        network["model"] = model
        network["inputs"] = {value.name: shape_of(value) for value in graph.input}
        network["outputs"] = [self._tensor(value.name, types[value.name]) for value in graph.output]
        for node in graph.node:
            kind = self.module.LayerType[_LAYERS.get(node.op_type, "ELEMENTWISE")]
            outputs = [self._tensor(name, types.get(name, "FLOAT")) for name in node.output]
            network["layers"].append(Listed(self, "ILayer", type=kind, outputs=outputs))
        return True

    def _tensor(self, name: str, dtype: str) -> Listed:
        return Listed(self, "ITensor", name=name, dtype=self.module.DataType[dtype])

    def _get_OnnxParser_num_errors(self, parser: Listed) -> int:
        return len(parser._state["errors"])

    def _OnnxParser_get_error(self, parser: Listed, index: int) -> Listed:
        return parser._state["errors"][index]

    def _ParserError_code(self, error: Listed) -> Any:
        return self.module.ErrorCode.UNSUPPORTED_NODE

    def _ParserError_desc(self, error: Listed) -> str:
        return "no importer\nfor this one"

    def _ParserError_node_operator(self, error: Listed) -> str:
        return error._state["node"].op_type

    def _ParserError_node_name(self, error: Listed) -> str:
        return error._state["node"].name

    def _get_INetworkDefinition_num_layers(self, network: Listed) -> int:
        return len(network._state["layers"])

    def _get_INetworkDefinition_num_outputs(self, network: Listed) -> int:
        return len(network._state["outputs"])

    def _INetworkDefinition_get_layer(self, network: Listed, index: int) -> Listed:
        return network._state["layers"][index]

    def _INetworkDefinition_get_output(self, network: Listed, index: int) -> Listed:
        return network._state["outputs"][index]

    def _get_ILayer_num_outputs(self, layer: Listed) -> int:
        return len(layer._state["outputs"])

    def _ILayer_get_output(self, layer: Listed, index: int) -> Listed:
        return layer._state["outputs"][index]

    def _Builder_build_serialized_network(self, builder: Listed, network: Listed, config: Listed) -> Memory | None:
        logger, said, asked = builder._state["logger"], network._state, config._state
        free = [name for name, shape in said["inputs"].items() if -1 in shape]
        missing = [name for name in free if not any(name in profile for profile in asked["profiles"])]
        problem = self.refuses_to_build or (f"no optimisation profile for {missing}" if missing else "")
        if problem:
            logger.log(self.module.ILogger.WARNING, "never mind")
            logger.log(self.module.ILogger.ERROR, problem)
            logger.log(self.module.ILogger.ERROR, "so nothing was built")
            return None
        self.meanwhile()
        if asked["cache"] is not None:
            asked["cache"]._state["timings"] |= {f"{node.op_type}" for node in said["model"].graph.node}
        self.builds.append({**asked, "model": said["model"]})
        content = {
            "version": self.module.__version__,
            "flags": sorted(asked["flags"]),
            "details": asked["profiling_verbosity"].name,
            "profile": asked["profiles"][0] if free else {},
            "model": b64encode(said["model"].SerializeToString()).decode(),
        }
        return Memory(json.dumps(content).encode())
