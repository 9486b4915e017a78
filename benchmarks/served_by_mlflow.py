"""Does every compiler's engine run where nothing but the model is known? Three models, all compilers, fresh environments.

``python benchmarks/served_by_mlflow.py [--compilers NAME,...] [--models NAME,...] [--env-manager uv] [--keep DIRECTORY]``

A study compiles ResNet-18, DeiT-Small and a text encoder with integer inputs from an ONNX file, and logs the engines to a
tracking server of its own. For each engine MLflow makes an environment from the model's own requirements, there the
engine is pulled and verified, and then ``mlflow models serve`` is asked over HTTP for the outputs of the probe. They must
be those of the baseline within the tolerance, and an environment of a compiler that needs no torch must have none.
Exit code 1: something was not so.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from mlflow import MlflowClient
from support.server import tracking_server

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.tracking import download
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph_testing import fresh

COMPILERS = ("onnxruntime", "openvino", "tvm", "torchscript", "torch-compile", "identity")
WITHOUT_TORCH = ("onnxruntime", "openvino", "tvm")
MODELS = ("resnet18", "deit-small", "encoder")
BATCHES = (1, 4)


@dataclass(frozen=True)
class Row:
    """One engine."""

    model: str
    compiler: str
    seconds: float = 0.0
    """Until the environment was made and the server answered."""
    torch: bool | None = None
    verified: bool = False
    error: float | None = None
    """Relative, of the answer to the probe."""
    problem: str = ""


def main() -> int:
    """Try every engine and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--env-manager", default="uv", choices=["uv", "virtualenv"])
    parser.add_argument("--keep", type=Path, help="a directory in which engines stay, for the next time")
    options = parser.parse_args()
    compilers, models = options.compilers.split(","), options.models.split(",")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    place = nullcontext(str(options.keep.absolute())) if options.keep else tempfile.TemporaryDirectory()
    rows = []
    with place as directory, tracking_server(Path(directory), workers=1) as uri:
        for model in models:
            found = _logged(uri, Path(directory), model, compilers)
            for compiler in compilers:
                row = _tried(uri, Path(directory), model, compiler, found.get(compiler), options.env_manager)
                rows.append(row)
                print(_line(row), flush=True)
    failed = [row for row in rows if row.problem]
    print(f"\n{len(rows) - len(failed)} of {len(rows)} engines are served from environments of their own")
    for row in failed:
        print(f"{row.model} by {row.compiler}: {row.problem}")
    return 1 if failed else 0


def _line(row: Row) -> str:
    torch = "" if row.torch is None else "torch" if row.torch else "no torch"
    error = "" if row.error is None else f"{row.error:.1e}"
    state = "failed" if row.problem else "ok"
    return f"{row.model:12} {row.compiler:14} {row.seconds:6.0f} s  {torch:8}  verified {row.verified!s:5}  {error:8} {state}"


def _tried(uri: str, directory: Path, model: str, compiler: str, model_id: str | None, env_manager: str) -> Row:
    """Make an environment for an engine, and see what it does there."""
    if model_id is None:
        return Row(model, compiler, problem="the study logged no engine")
    root = directory / "fresh" / f"{model}-{compiler}"
    shutil.rmtree(root, ignore_errors=True)
    torch, verified, error, seconds, problem = None, False, None, 0.0, ""
    try:
        with tempfile.TemporaryDirectory() as temporary:
            package = download.pull(download.locate(model_id, uri), Path(temporary) / "package")
            with fresh.served(f"models:/{model_id}", uri, root, env_manager) as asked:
                seconds, torch = asked.seconds, asked.has("torch")
                done = asked.run("engine", "verify", f"models:/{model_id}", "--run", tracking_uri=uri)
                verified = done.returncode == 0
                error, problem = fresh.answers(package, asked)
                if torch and compiler in WITHOUT_TORCH:
                    problem = problem or "its environment has torch"
                if not verified:
                    problem = problem or f"verify: {' '.join((done.stdout + done.stderr).split())[-400:]}"
    except NGraphError as failure:
        problem = " ".join(str(failure).split())[-1500:]
    if not problem:
        shutil.rmtree(root, ignore_errors=True)
    return Row(model, compiler, seconds, torch, verified, error, problem)


def _logged(uri: str, directory: Path, model: str, compilers: list[str]) -> dict[str, str]:
    """Engines of a model on the server by compiler; compiled and logged where they are missing."""
    found = _engines(uri, model)
    missing = [name for name in compilers if name not in found]
    if not missing:
        return found
    study = directory / f"{model}.yaml"
    study.write_text(yaml.safe_dump(_study(directory, model, missing)))
    command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", str(study), "--tracking-uri", uri]
    command += ["--experiment", model, "--home", str(directory / "home")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"the study of {model} failed: {done.stderr[-2000:]}")
    return _engines(uri, model)


def _engines(uri: str, model: str) -> dict[str, str]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(model)
    if experiment is None:
        return {}
    ready = [one for one in client.search_logged_models([experiment.experiment_id]) if str(one.status) == "READY"]
    smallest = [one for one in ready if str(BATCHES[0]) in one.tags[Tag.BATCH_SIZES].split(",")]
    return {one.tags[Tag.COMPILER]: one.model_id for one in smallest}


def _study(directory: Path, model: str, compilers: list[str]) -> dict[str, Any]:
    workload: Any = {"resnet18": "timm:resnet18", "deit-small": "deit-small"}.get(model)
    if model == "encoder":
        workload = {
            "ref": f"onnx:{_encoder(directory)}",
            "options": {"label": "encoder"},
        }
    return {
        "name": model,
        "workloads": [workload],
        "compilers": ["identity", *(name for name in compilers if name != "identity")],
        "batch_sizes": list(BATCHES),
        "repetitions": 3,
        "slice_repetitions": 3,
        "warmup": {"window": 2, "max_seconds": 0.2},
        # This is about function, so other work on the machine does no harm.
        "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1000, "max_drift": 1000},
    }


def _encoder(directory: Path) -> Path:
    """The text encoder as an ONNX file; made in a process of its own, for it imports torch."""
    target = directory / "encoder.onnx"
    code = f"""
import torch
from mlflow_ngraph.workloads.transformer import LENGTH, TYPES, WORDS, encoder
torch.manual_seed(0)
shape = (2, LENGTH)
inputs = (torch.randint(0, WORDS, shape), torch.ones(shape, dtype=torch.int64), torch.randint(0, TYPES, shape))
torch.onnx.export(
    encoder(2).eval(), inputs, {str(target)!r}, dynamo=True, external_data=False,
    input_names=["tokens", "mask", "types"], output_names=["words", "summary"],
    dynamic_shapes=[{{0: torch.export.Dim("batch", min=1, max=64)}}] * 3,
)
"""
    if not target.is_file():
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return target


if __name__ == "__main__":
    sys.exit(main())
