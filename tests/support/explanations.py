"""Explanations as adapters write them, without compiling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.explanation import Explanation, Kernel, file_name
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.execute.record import StudyRecord

IDENTITY = Explanation(nodes_before=5, nodes_after=5)
OPENVINO = Explanation(
    nodes_before=120,
    nodes_after=41,
    layout_changes=2,
    kernels=(
        Kernel("input reorder", "Reorder", implementation="ref_any", layout="nhwc", precision="f32", microseconds=25.0),
        Kernel(
            "conv1",
            "Convolution",
            fused=("conv1", "bn1", "act|1"),
            implementation="brgconv_avx512_amx",
            layout="nhwc",
            precision="f32",
            provider="CPU",
            microseconds=70.0,
        ),
        Kernel("fc", "FullyConnected", implementation="brgemm_avx512", layout="nc", precision="f32", microseconds=5.0),
    ),
    code_bytes=12_345,
    facts={"streams": 1, "pinned": True, "threshold": 0.12345},
)


def write_explanations(record: StudyRecord, root: Path, texts: dict[tuple[str, int], Explanation | str]) -> StudyRecord:
    """Put explanations beside the engines of ``record``, by the compiler's name and batch size; text is written as is."""
    for lane in record.lanes.values():
        for index, engine in enumerate(lane.engines):
            directory = root / engine.directory
            for batch in engine.batch_sizes:
                content = texts.get((lane.lane.compiler, batch))
                if isinstance(content, Explanation):
                    content.write(directory / file_name(batch))
                elif content is not None:
                    (directory / file_name(batch)).write_text(content)
            lane.engines[index] = replace(engine, files=digest_files(directory))
    return record


def write_study(home: Path, name: str = "mine-1", at: float = 1.0) -> Path:
    """A study of ResNet-18 as its journal and its engines lie in a home.

    OpenVINO and identity explained both batch sizes, torch-compile could not explain its engine, TVM built none, and
    ONNX Runtime has not begun.
    """
    directory = home / "studies" / name
    lanes = {
        compiler: {
            "id": compiler[0] * 12,
            "label": "ResNet-18",
            "compiler": compiler,
            "compiler_label": compiler,
            "precision": "fp32",
            "batch_sizes": [1, 8],
        }
        for compiler in ("identity", "openvino", "compile-torch", "vm-tvm", "runtime-onnx")
    }
    started = {"event": "study_started", "at": at, "study_id": name, "study": {"name": "mine"}, "device": "host"}
    events: list[dict[str, Any]] = [{**started, "lanes": list(lanes.values())}]
    for compiler, explanation in (("identity", IDENTITY), ("openvino", OPENVINO), ("compile-torch", None)):
        lane, engine = lanes[compiler]["id"], f"engines/{compiler}"
        (directory / engine).mkdir(parents=True)
        for batch in (1, 8):
            if explanation is not None:
                explanation.write(directory / engine / file_name(batch))
            cell = {"cell": f"{lane}-b{batch}", "lane": lane, "batch": batch}
            events.append({"event": "cell_ready", "at": at, **cell, "precision": "fp32"})
            events.append({"event": "cell_finished", "at": at, **cell, "verdict": "ok", "reason": ""})
        built = {"event": "engine_built", "at": at, "lane": lane, "batch_sizes": [1, 8], "directory": engine}
        events.insert(1, built)
    events.append({"event": "engine_unexplained", "at": at, "lane": "c" * 12, "reason": "timed out"})
    for batch in (1, 8):
        cell = {"cell": f"{'v' * 12}-b{batch}", "lane": "v" * 12, "batch": batch}
        events.append({"event": "cell_finished", "at": at, **cell, "verdict": "unsupported", "reason": "no Col2Im"})
    (directory / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return directory
