"""Builder settings of TensorRT for RTX: the GPUs to build for."""

from __future__ import annotations

from typing import Any

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.errors import UnsupportedError


class RTXConfiguration:
    """GPUs of one build: those of ``capability``, or with ``wide`` all since Ampere that the library knows.

    ``capability`` is None where there is no GPU.
    """

    def __init__(self, workspace_mib: int | None, capability: tuple[int, int] | None, *, wide: bool) -> None:
        self.workspace_mib = workspace_mib
        self._capability = capability
        self._wide = wide

    def apply(self, trt: Any, config: Any) -> None:
        if self._capability is None:
            return
        # The library builds for the GPU that it finds, whatever it is, and refuses to run what it built.
        known = self._known(trt, self._capability)
        if not self._wide:
            config.num_compute_capabilities = 1
            config.set_compute_capability(known, 0)

    def built(self, config: Any) -> None:
        """Do nothing: kernels are chosen on the GPU, when an engine is loaded."""

    def in_force(self, trt: Any, config: Any) -> dict[str, FlagValue]:
        count = int(config.num_compute_capabilities)
        named = [config.get_compute_capability(index).name for index in range(count)]
        return {"built_for": ",".join(named) or "all since Ampere"}

    @staticmethod
    def _known(trt: Any, capability: tuple[int, int]) -> Any:
        """The library's constant for a compute capability. Raises `UnsupportedError` if it has none."""
        wanted = "SM{}{}".format(*capability)
        known = {name: value for name, value in trt.ComputeCapability.__members__.items() if name.startswith("SM")}
        if wanted not in known:
            raise UnsupportedError(
                f"tensorrt-rtx {trt.__version__} has no engines for {wanted.lower()}: "
                f"it knows {', '.join(known).lower()}"
            )
        return known[wanted]
