"""TVMFlags: options of the TVM compiler: graph passes, processor, layout, and the search for kernels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mlflow_ngraph.compilers.base import Flags


class TVMFlags(Flags):
    """Options of TVM. All from ``trials`` on have no effect while ``trials`` is 0, but ``conv_layout``."""

    opt_level: int = Field(3, ge=0, le=3)
    """Level of graph passes; 3 runs all safe ones."""
    mcpu: str = Field("native", pattern=r"^[A-Za-z0-9_.+-]+$")
    """The processor to generate code for, under LLVM's name; ``native`` is the one of this machine, with exactly the
    instruction sets that it has."""
    trials: int = Field(0, ge=0)
    """Kernels to measure in the search for fast ones, over all tasks of the model at one batch size. 0 is the default
    pipeline without a search."""
    early_stopping: int = Field(150, ge=0)
    """End the search for a task after this many trials that brought it no improvement; 0 never does."""
    cost_model: Literal["xgb", "random"] = "xgb"
    """Ranking of candidates before they are measured: ``xgb`` learns from the trials with gradient-boosted trees,
    ``random`` draws lots."""
    conv_layout: Literal["auto", "model", "nhwc"] = "auto"
    """Layout of convolutions: ``model`` keeps the one of the ONNX file, which is NCHW; ``nhwc`` converts, so that
    kernels can use whole vectors of channels. ``auto`` is ``nhwc`` for a search on the CPU where TVM can convert the
    model, otherwise ``model``."""
    prepack_weights: bool = True
    """Let the search choose the layout of constant weights, and rewrite them when the engine is compiled. CPU only."""
    tiling_seeds: bool = True
    """Begin each task with tilings whose sums fit the vector registers, and add some to each later batch. CPU only."""
    candidates: int = Field(16, ge=1, le=1024)
    """Kernels that are proposed, built and measured at once; what a killed search loses at most."""
    population: int = Field(128, ge=8)
    """Schedules that the evolutionary search keeps for a task."""
    generations: int = Field(3, ge=0)
    """Rounds of mutation before candidates are picked from the population."""
    evaluator_number: int = Field(1, ge=1)
    """Fewest calls of a kernel whose mean is one reading; see ``evaluator_min_ms``."""
    evaluator_repeat: int = Field(3, ge=1)
    """Readings of a kernel; their median is its latency."""
    evaluator_min_ms: int = Field(20, ge=0)
    """Shortest duration of a reading: fast kernels are called more often to fill it."""
    build_timeout_s: float = Field(60.0, gt=0)
    """Seconds after which the build of a candidate is given up, and the trial counts as failed."""
    run_timeout_s: float = Field(30.0, gt=0)
    """Seconds after which the measurement of a candidate is given up, and the trial counts as failed."""
    seed: int = Field(0, ge=0, lt=2**31 - 1)
    """Seed of the search's random choices. Measurements differ from run to run, so searches do, too."""
