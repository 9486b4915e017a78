"""Results of the paper's models and blocks on two devices, as studies would give them: for reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.workloads.catalogue import paper_models
from tests.support.tidy import Drawn, cells

DEVICES = ("xeon", "orin")
COMPILERS = ("identity", "onnxruntime", "openvino", "torch-compile")
BATCHES = (1, 2, 4, 8, 16)
WIDTHS = {"conv": (64, 96), "mha": (128, 256)}
DEPTHS = (1, 2, 3)
GAIN = {"identity": 1.0, "onnxruntime": 1.3, "openvino": 2.0, "torch-compile": 1.6}
FAMILY_GAIN = {"ResNets": 1.1, "EfficientNets": 1.4, "DeiTs": 0.8, "Swins": 0.45, "ConvNeXts": 0.9}
"""By family: with openvino, Swins are slower than with identity."""


def models(devices: tuple[str, ...] = DEVICES, batches: tuple[int, ...] = BATCHES, seed: int = 7) -> pd.DataFrame:
    """A study of the fifteen models on each device."""
    rows = [
        {
            "study_id": f"models-{device}", "study": "paper-models", "device": device, "fingerprint": f"digest-{device}",
            "workload": f"timm:{model.timm_name}", "label": model.label, "family": model.family,
            "compiler": compiler, "compiler_label": compiler, "batch": batch, "parameters": model.parameters,
            "paper_macs": model.paper_macs, "true_macs": model.true_macs,
            "throughput": _throughput(model.true_macs, compiler, model.family, batch) * (0.3 if device == "orin" else 1),
        }
        for device in devices
        for model in paper_models().values()
        for compiler in COMPILERS
        for batch in batches
    ]  # fmt: skip
    return _drawn(rows, seed)


def blocks(devices: tuple[str, ...] = DEVICES, batches: tuple[int, ...] = BATCHES, seed: int = 8) -> pd.DataFrame:
    """A study of stacked blocks of each kind on each device."""
    rows = [
        {
            "study_id": f"{target}-{device}", "study": f"paper-blocks-{target}", "device": device,
            "fingerprint": f"digest-{device}", "workload": f"block:{target}?depth={depth}&width={width}",
            "label": f"{target}-w{width}-d{depth}", "family": f"{target}-block", "compiler": compiler,
            "compiler_label": compiler, "batch": batch, "parameters": depth * (9 * width**2 + 3 * width),
            "paper_macs": 0, "true_macs": depth * 9 * width**2 * 224**2,
            "throughput": 4e4 / width / depth * batch**0.7 * GAIN[compiler] ** (1 + 0.1 * (depth - 1)),
        }
        for device in devices
        for target, widths in WIDTHS.items()
        for width in widths
        for depth in DEPTHS
        for compiler in COMPILERS
        for batch in batches
    ]  # fmt: skip
    return _drawn(rows, seed)


def everything(devices: tuple[str, ...] = DEVICES) -> pd.DataFrame:
    """Both, with some cells that did not end well."""
    frame = pd.concat([models(devices), blocks(devices)], ignore_index=True)
    broken = (frame["label"] == "Swin-Base") & (frame["compiler"] == "torch-compile")
    frame.loc[broken, "verdict"] = "unsupported"
    frame.loc[broken, "reason"] = "no lowering for aten::roll"
    frame.loc[
        broken, [name for name in map(str, frame) if name.startswith(("throughput", "speedup", "ase", "bsr", "rtr"))]
    ] = np.nan
    shaky = (frame["label"] == "ResNet-18") & (frame["compiler"] == "onnxruntime") & (frame["batch"] == 16)
    frame.loc[shaky, "verdict"] = "timeout"
    frame.loc[shaky, "reason"] = "medians of slices scatter by 12 %"
    return frame


def _throughput(macs: int, compiler: str, family: str, batch: int) -> float:
    gain = GAIN[compiler] * (FAMILY_GAIN[family] if compiler == "openvino" else 1.0)
    return 4e11 / macs * gain * batch ** (0.5 if compiler == "identity" else 0.45)


def _drawn(rows: list[dict[str, Any]], seed: int) -> pd.DataFrame:
    truth = cells(**pd.DataFrame(rows).to_dict("list"))
    frame = Drawn(truth).draw(seed)
    count = len(frame)
    rng = np.random.default_rng(seed)
    return frame.assign(
        run_id="run-" + frame["study_id"],
        lane_run_id="lane-" + frame["lane"],
        throughput_std=frame["throughput"] * 0.03,
        cpu_percent=np.where(frame["compiler"] == "identity", 97.0, 88.0) + rng.normal(0, 0.5, count),
        cpu_percent_std=0.8,
        cpu_reduction=np.where(frame["compiler"] == "identity", 0.0, 0.09),
        cpu_reduction_ci_low=np.where(frame["compiler"] == "identity", 0.0, 0.07),
        cpu_reduction_ci_high=np.where(frame["compiler"] == "identity", 0.0, 0.11),
        cpu_reduction_log_se=np.where(frame["compiler"] == "identity", 0.0, 0.01),
        cpu_reduction_df=9.0,
        compile_total_s=rng.uniform(1, 60, count),
        compile_s=1.0,
        built_beside=0.0,
        repetitions=100.0,
        foreign_cpu_percent=rng.uniform(0, 1, count),
        engine_reused=pd.Series(pd.NA, index=frame.index),
    )
