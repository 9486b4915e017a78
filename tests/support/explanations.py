"""Explanations as adapters write them, without compiling."""

from __future__ import annotations

from pathlib import Path

from mlflow_ngraph.compilers.explanation import Explanation, Kernel, file_name
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.execute.record import StudyRecord
from tests.support.script import Script

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
            lane.engines[index] = engine.model_copy(update={"files": digest_files(directory)})
    return record


def write_study(home: Path, name: str = "mine-1", at: float = 1.0) -> Path:
    """A study of ResNet-18 as its journal and its engines lie in a home.

    OpenVINO and identity explained both batch sizes, torch-compile could not explain its engine, TVM built none, and
    ONNX Runtime has not begun.
    """
    directory = home / "studies" / name
    lanes = ["identity", "openvino", "compile-torch", "vm-tvm", "runtime-onnx"]
    script = Script([1, 8], lanes, name, "mine", at, "ResNet-18")
    for compiler, explanation in (("identity", IDENTITY), ("openvino", OPENVINO), ("compile-torch", None)):
        engine = f"engines/{compiler}"
        (directory / engine).mkdir(parents=True)
        script.built(compiler, [1, 8], engine)
        for batch in (1, 8):
            if explanation is not None:
                explanation.write(directory / engine / file_name(batch))
            script.ready(compiler, batch).finished(compiler, batch)
    script.say("engine_unexplained", lane="compile-torch", reason="timed out")
    for batch in (1, 8):
        script.finished("vm-tvm", batch, "unsupported", "no Col2Im")
    return script.write(directory)
