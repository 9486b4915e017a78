"""MLflow run context provider: tags everything that is logged with device and host if ``$NGRAPH_DEVICE`` is set."""

from __future__ import annotations

import os
import platform

from mlflow.tracking.context.abstract_context import RunContextProvider

from mlflow_ngraph.tracking.schema import Tag

DEVICE_VARIABLE = "NGRAPH_DEVICE"
"""Names the device profile for the tags; nothing is tagged where it is not set."""


class DeviceContext(RunContextProvider):  # type: ignore[misc]  # MLflow gives the base no types
    """Context provider for the device of a run or LoggedModel (entry-point group ``mlflow.run_context_provider``)."""

    def in_context(self) -> bool:
        return bool(os.environ.get(DEVICE_VARIABLE))

    def tags(self) -> dict[str, str]:
        return {
            Tag.DEVICE: os.environ[DEVICE_VARIABLE],
            Tag.HOST_ARCH: platform.machine(),
            Tag.HOST_SYSTEM: platform.system(),
            Tag.HOST_PROCESSORS: str(os.cpu_count()),
        }
