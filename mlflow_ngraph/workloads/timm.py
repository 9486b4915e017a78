"""Workloads of timm's models: those of the paper's table 4, and any other."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from mlflow_ngraph.errors import DependencyError, WorkloadError
from mlflow_ngraph.workloads.base import BATCH, Init, TensorSpec, Workload, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.catalogue import paper_models
from mlflow_ngraph.workloads.options import Options, canonical, parse_options

if TYPE_CHECKING:
    import torch

_FAMILY = re.compile(r"(?:tf_|legacy_)?([a-z]+?(?:v\d+)?)(?:[\d_.]|$)")
_PAPER_SIZE = 224


class TimmOptions(Options):
    """Options of ``timm:``."""

    image_size: int | None = Field(None, ge=1)
    """Height and width of the input; the default is the model's own, or 224 for the models of the paper."""


class TimmWorkload(Workload):
    """``timm:<name>``."""

    scheme: ClassVar[str] = "timm"
    catalogue: ClassVar[str | None] = "timm"

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        options = parse_options(TimmOptions, ref)
        paper = paper_models().get(ref.target)
        if paper and options.image_size == _PAPER_SIZE:
            options = TimmOptions()
        super().__init__(canonical(ref, options), init)
        self._size = options.image_size
        self._paper = paper

    @property
    def label(self) -> str:
        name = self._paper.label if self._paper else self.ref.target
        return f"{name}@{self._size}" if self._size else name

    @property
    def family(self) -> str:
        if self._paper:
            return self._paper.family
        match = _FAMILY.match(self.ref.target.lower())
        return match.group(1) if match else self.ref.target

    @property
    def known(self) -> WorkloadInfo | None:
        if self._paper is None or self._size is not None:
            return None
        return self._paper.info(str(self.ref))

    def check(self) -> None:
        timm = _timm()
        name = self.ref.target
        if not timm.is_model(name):
            close = get_close_matches(name, timm.list_models(), n=3)
            hint = f"did you mean {', '.join(close)}?" if close else "timm.list_models() lists those it has"
            raise WorkloadError(f"timm {timm.__version__} has no model {name!r}: {hint}")
        base, _, tag = name.partition(".")
        if tag and not timm.is_model_pretrained(name):
            known = ", ".join(timm.list_pretrained(f"{base}.*")) or "none"
            raise WorkloadError(f"timm has no weights tagged {tag!r} for {base!r}: known: {known}")
        if self.init.pretrained and not timm.is_model_pretrained(name):
            raise WorkloadError(f"timm has no pretrained weights for {name!r}: set init.pretrained to false")

    def inputs(self) -> tuple[TensorSpec, ...]:
        if self._paper and self._size is None:
            return self._paper.inputs
        channels, height, width = self._config().input_size
        if self._size is not None:
            height = width = self._size
        return (TensorSpec("input", "float32", (BATCH, channels, height, width)),)

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.initialise import calibrate, seeded

        with seeded(self.init.seed):
            model = self._create(pretrained=self.init.pretrained)
        if self.init.calibrate and not self.init.pretrained:
            calibrate(model, self.inputs(), self.init.seed, str(self.ref))
        return model

    def skeleton(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.initialise import Uninitialised

        with Uninitialised():
            return self._create(pretrained=False)

    def _create(self, *, pretrained: bool) -> torch.nn.Module:
        self.check()
        options: dict[str, Any] = {}
        _, height, width = self.inputs()[0].shape[1:]
        config = self._config()
        if config.fixed_input_size and (height, width) != tuple(config.input_size[1:]):
            options["img_size"] = height
        try:
            model: torch.nn.Module = _timm().create_model(self.ref.target, pretrained=pretrained, **options)
        except (RuntimeError, TypeError, ValueError, AssertionError, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise WorkloadError(f"workload {self.ref}: timm cannot build it: {reason}") from error
        return model.eval()

    def _config(self) -> Any:
        self.check()
        config = _timm().get_pretrained_cfg(self.ref.target)
        if config is None or config.input_size is None:
            raise WorkloadError(f"timm states no input size for {self.ref.target!r}: use torch: with a factory instead")
        return config


def _timm() -> Any:
    from mlflow_ngraph import torchvision_hook

    try:
        torchvision_hook.install()
        import timm
    except ImportError as error:
        raise DependencyError(
            f"timm models need {error.name}; install it with: pip install 'mlflow-ngraph[torch]'"
        ) from error
    return timm
