"""Are engines of trained networks ever refused that are right? Networks that come inside packages, through six compilers.

``python benchmarks/trained_networks.py [--folder DIR] [--compilers NAME,...] [--networks TEXT,...] [--batch-sizes 1,3]``, from
the root of the repository. The packages are downloaded into the folder, and only their files are used. One study measures all
cells, and is resumed when the benchmark is run again. Each cell that is ``parity_failed`` is judged once more on the
inputs for which it was refused, by float64 that is computed node by node, apart from the study's own: *wrong* where the
engine is more than four times as far from it as eager execution, *refused* where it is not,
*undecided* where nobody computes it in float64. Exit code 1: one was refused or is undecided, or nothing was verified.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from support import records
from support.resumed import BRIEFLY, measured

from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import CellRecord, StudyRecord
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_bisect.onnx_program import OnnxProgram
from mlflow_ngraph_bisect.program import InseparableError

WITHIN = 4.0
"""How many times as far from float64 as eager execution a right engine may be."""
COMPILERS = "identity,torchscript,torch-compile,onnxruntime,openvino,tvm"


@dataclass(frozen=True)
class Network:
    """A trained network inside a package."""

    package: str
    member: str
    options: dict[str, Any] = field(default_factory=dict)


_OCR = "rapidocr-onnxruntime==1.4.4"
_SPEECH = "speechmos==0.0.1.1"
NETWORKS = (
    Network("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", {"ranges": {"bytes": [0, 257]}}),
    Network(
        _OCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"dims": {"x[2]": 48, "x[3]": 192}},
    ),
    Network(
        _OCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        {"dims": {"x[2]": 48, "p2o.DynamicDimension.1": 160}},
    ),
    Network(
        _OCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"dims": {"p2o.DynamicDimension.1": 96, "p2o.DynamicDimension.2": 96}},
    ),
    Network(_SPEECH, "speechmos/dnsmos_models/model_v8.onnx"),
    Network(_SPEECH, "speechmos/dnsmos_models/sig_bak_ovr.onnx"),
    Network(_SPEECH, "speechmos/plcmos_models/plcmos_v2.onnx", {"dims": {"frames": 64}}),
    Network("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    Network("silero-vad==6.2.3", "silero_vad/data/silero_vad_openvino_16k.onnx"),
    Network(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        {"dims": {"sequence": 576}, "ranges": {"sr": [16000, 16001]}},
    ),
    Network("ddddocr==1.5.6", "ddddocr/common_old.onnx", {"dims": {"image_width": 96}}),
    Network("ddddocr==1.5.6", "ddddocr/common_det.onnx"),
)


def main() -> int:
    """Download, measure, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("trained-networks"))
    parser.add_argument("--compilers", default=COMPILERS)
    parser.add_argument("--networks", default="", help="only those whose path contains one of these texts")
    parser.add_argument("--batch-sizes", default="1,3")
    records.add_option(parser)
    options = parser.parse_args()
    chosen = [one for one in NETWORKS if any(text in one.member for text in options.networks.split(","))]
    files = [fetched(one, options.folder) for one in chosen]
    batch_sizes = [int(text) for text in options.batch_sizes.split(",")]
    given = study(chosen, files, options.compilers.split(","), batch_sizes)
    directory = measured(given, options.folder / "home")
    counts = Counter(report(replay.load(directory), directory, {f"onnx:{file}": file for file in files}))
    print(f"\n{counts.total()} cells:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    of, doubtful = f"of {counts.total()}", counts["refused"] + counts["undecided"]
    refused = records.at_most("refused though right, or undecided", doubtful, 0, of)
    records.keep(options, "trained_networks", refused, records.at_least("ok", counts["ok"], 1, of))
    return int(doubtful > 0 or counts["ok"] == 0)


def fetched(network: Network, folder: Path) -> Path:
    """The file of a network, downloaded and unpacked where it is missing."""
    path = folder / network.member
    if not path.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder / "wheels")]
        subprocess.run([*command, network.package], check=True)
        name, version = network.package.replace("-", "_").split("==")
        (wheel,) = (folder / "wheels").glob(f"{name}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(network.member, folder)
    return path


def study(
    chosen: Sequence[Network], files: Sequence[Path], compilers: Sequence[str], batch_sizes: Sequence[int]
) -> Study:
    """Everything is as short as it can be but the verification."""
    return parse(
        {
            "name": "trained-networks",
            "workloads": [
                {"ref": f"onnx:{file}", "options": one.options} for one, file in zip(chosen, files, strict=True)
            ],
            "compilers": list(compilers),
            "batch_sizes": list(batch_sizes),
            **BRIEFLY,
            "limits": {"compile_seconds": 600, "load_seconds": 300, "reload_seconds": 0},
        }
    )


def report(record: StudyRecord, directory: Path, files: dict[str, Path]) -> Iterator[str]:
    """A line for each cell; yields its verdict, where that is ``parity_failed`` whether it is right."""
    for lane in record.lanes.values():
        for batch, cell in lane.cells.items():
            said = str(cell.verdict)
            if cell.verdict is Verdict.PARITY_FAILED:
                said = judged(cell, directory, files[lane.lane.workload.partition("?")[0].partition("#")[0]])
            print(f"{lane.lane.label}/{lane.lane.compiler}/b{batch}: {said} {cell.remarks}")
            yield said.partition(" ")[0]


def judged(cell: CellRecord, directory: Path, file: Path) -> str:
    """``wrong`` or ``refused``, with both distances from float64."""
    if not cell.verified["kept"]:
        return "undecided (it was refused on the timed inputs, which are not kept)"
    with np.load(directory / cell.verified["kept"]) as kept:
        arrays = {name: kept[name] for name in kept.files}
    several = {
        kind: [arrays[f"{kind}_{index}"] for index in range(sum(name.startswith(f"{kind}_") for name in arrays))]
        for kind in ("input", "engine", "reference")
    }
    model = onnx.load(str(file))
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    program = OnnxProgram(model, dict(zip(names, several["input"], strict=True)))
    try:
        exact = program.exact(program.part(range(len(program.nodes)), program.outputs))
    except InseparableError as error:
        return f"undecided ({error})"
    own, theirs = distance(several["reference"], exact), distance(several["engine"], exact)
    found = "wrong" if theirs > WITHIN * own else "refused"
    return f"{found} ({theirs:.1e} from float64, eager execution {own:.1e})"


def distance(outputs: Sequence[np.ndarray[Any, Any]], exact: Sequence[np.ndarray[Any, Any]]) -> float:
    """Largest error of an element over the largest element of its output."""
    found = [0.0]
    for ours, truth in zip(outputs, exact, strict=True):
        if truth.size:
            wide = np.asarray(ours, np.float64)
            found.append(float(np.abs(wide - truth).max() / max(float(np.abs(truth).max()), np.finfo(np.float32).tiny)))
    return max(found)


if __name__ == "__main__":
    sys.exit(main())
