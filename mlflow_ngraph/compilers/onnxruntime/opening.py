"""Layout of an engine's directory, and sessions opened from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import FlagValue, Target
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags
from mlflow_ngraph.compilers.onnxruntime.providers import (
    PROVIDERS,
    Provider,
    nodes_by_provider,
    set_tf32,
    uncounted,
    with_options,
)
from mlflow_ngraph.compilers.onnxruntime.session import affinities, create, options
from mlflow_ngraph.errors import CompileError, UnsupportedError

WITHOUT_GPU: dict[str, FlagValue] = {"cudnn_conv_algo_search": None, "cuda_graph": None}
"""Flags that only the providers for a GPU read."""


@dataclass(frozen=True)
class Layout:
    """Paths within an engine's directory."""

    directory: Path
    suffix: str
    """``onnx`` or ``ort``."""
    shared: bool
    """True if one file serves every batch size."""
    symbols: tuple[str, ...] = ()
    """Names of the free batch axis that are given the batch size when the file is loaded."""

    def model(self, batch: int | None) -> Path:
        return self.directory / f"model{self._batch(batch)}.{self.suffix}"

    def source_nodes(self, batch: int | None) -> Path:
        return self.directory / f"nodes{self._batch(batch)}.json"

    def tensorrt(self, batch: int) -> Path:
        """Directory of the engines that TensorRT built for a batch size."""
        return self.directory / f"tensorrt-b{batch}"

    def _batch(self, batch: int | None) -> str:
        return "" if self.shared or batch is None else f"-b{batch}"


@dataclass(frozen=True)
class Opened:
    """A session with its effective flags."""

    session: Any
    facts: Mapping[str, FlagValue]


class Opener:
    """Opens an engine's files with one provider."""

    def __init__(self, flags: OnnxRuntimeFlags, provider: Provider, target: Target, layout: Layout) -> None:
        self.provider = provider
        self.layout = layout
        self._flags = flags
        self._target = target

    def open(self, batch: int, configure: Callable[[Any], None] | None = None) -> Opened:
        """Create a session for a batch size.

        ``configure`` changes the session's options last; such a session replays no CUDA graph, which would hide its
        steps. Raises `CompileError` if there is no file for this batch size, and `UnsupportedError` if the provider is
        missing or took no node.
        """
        path = self.layout.model(batch)
        if not path.is_file():
            raise CompileError(f"{self.layout.directory} holds no engine for batch size {batch}")
        set_tf32(self.provider, self._target.precision)
        # What the CPU provider optimised ahead of time is not optimised again.
        level = "none" if self.provider.name == "cpu" else self._flags.graph_optimization_level
        session_options = options(self._flags, self._target, level)
        for symbol in self.layout.symbols:
            session_options.add_free_dimension_override_by_name(symbol, batch)
        flags = self._flags
        if configure is not None:
            configure(session_options)
            flags = flags.model_copy(update={"cuda_graph": False})
        cache = self.layout.tensorrt(batch) if self.provider.name == "tensorrt" else None
        before = _files(cache)
        session = create(path, session_options, with_options(self.provider, flags, self._target, cache))
        taken = nodes_by_provider(session, self.provider.runtime_name)
        facts = self._in_force(session) | (taken.facts() if taken else uncounted(self.provider))
        if cache is not None:
            facts["tensorrt_engines"] = "built" if _files(cache) - before else "reused"
        return Opened(session, facts)

    def _in_force(self, session: Any) -> dict[str, FlagValue]:
        """Effective flags of the session.

        Raises `UnsupportedError` if the CUDA provider computes in another precision.
        """
        session_options, provider = session.get_session_options(), self.provider
        facts: dict[str, FlagValue] = {
            "inter_op_threads": session_options.inter_op_num_threads,
            "pinning": bool(affinities(self._flags, self._target)),
            "memory_pattern": session_options.enable_mem_pattern,
            "memory_arena": session_options.enable_cpu_mem_arena,
            "providers": ",".join(session.get_providers()),
        }
        if provider.accelerator == "cpu":
            return facts | WITHOUT_GPU
        said = session.get_provider_options()
        cuda = said.get(PROVIDERS["cuda"].runtime_name, {})
        tf32 = self._target.precision == "tf32"
        if cuda.get("use_tf32", "") not in ("", "1" if tf32 else "0"):
            raise UnsupportedError(f"onnxruntime's CUDA provider did not turn tf32 {'on' if tf32 else 'off'}")
        graph = "enable_cuda_graph" if provider.name == "cuda" else "trt_cuda_graph_enable"
        search = cuda.get("cudnn_conv_algo_search", self._flags.cudnn_conv_algo_search)
        facts["cudnn_conv_algo_search"] = str(search).lower()
        facts["cuda_graph"] = said.get(provider.runtime_name, {}).get(graph) == "1"
        return facts


def _files(directory: Path | None) -> set[Path]:
    return set(directory.glob("*.engine")) if directory else set()
