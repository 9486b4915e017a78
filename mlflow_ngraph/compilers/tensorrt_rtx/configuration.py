"""What the builder of TensorRT for RTX is told beside what all editions are told."""

from __future__ import annotations

from typing import Any

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.errors import UnsupportedError

CURRENT = "CURRENT"
"""NVIDIA's name for the compute capability of the GPU of this machine."""


class RTXConfiguration:
    """The GPUs of one build.

    Parameters
    ----------
    capability : tuple[int, int] | None
        The one compute capability to build for; None builds for all since Ampere that the library knows.
    here : bool
        Whether a GPU of this capability is in this machine.
    """

    def __init__(self, workspace_mib: int | None, capability: tuple[int, int] | None, *, here: bool) -> None:
        self.workspace_mib = workspace_mib
        self._capability = capability
        self._here = here

    def apply(self, trt: Any, config: Any) -> None:
        if self._capability is None:
            return
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, self._name(trt)), 0)

    def built(self, config: Any) -> None:
        """Nothing was learnt: kernels are chosen on the GPU, when an engine is loaded."""

    def in_force(self, trt: Any, config: Any) -> dict[str, FlagValue]:
        count = int(config.num_compute_capabilities)
        named = [config.get_compute_capability(index).name for index in range(count)]
        return {"built_for": ",".join(named) or "all since Ampere"}

    def _name(self, trt: Any) -> str:
        """NVIDIA's name for the compute capability.

        Raises
        ------
        UnsupportedError
            It has none, and no such GPU is in this machine.
        """
        assert self._capability is not None
        wanted = "SM{}{}".format(*self._capability)
        known = [name for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
        if wanted in known:
            return wanted
        if self._here:
            return CURRENT
        raise UnsupportedError(
            f"tensorrt-rtx {trt.__version__} does not build for {wanted.lower()} without such a GPU: "
            f"it knows {', '.join(known).lower()}"
        )
