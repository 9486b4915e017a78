"""ONNX files as people have them, on the baseline, ONNX Runtime and OpenVINO: each verdict is the one that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from mlflow_ngraph.compilers import host
from mlflow_ngraph.workloads import trial_references
from mlflow_ngraph_testing.steps import within
from tests.support.zoo.quick import Verdicts, verdicts
from tests.workloads import reported_files

pytestmark = pytest.mark.long

BATCHES = (1, 3, 8)
FEW_S = 0.5
"""For the trials of a model, in place of the time that a study has."""
COMPILERS = ("identity", "onnxruntime", "openvino")
OPTIONS: dict[str, dict[str, Any]] = {"step": {"dims": {"past_len": 5}}, "rmsrope": {"ranges": {"p": [0, 10]}}}
OTHERWISE: dict[str, dict[str, str]] = {
    "branch": {"identity": "no ONNX operator If"},
    "ifin": {"identity": "no ONNX operator If"},
    "weights_in_branch": {"identity": "no ONNX operator If"},
    "contrib": {"identity": "no ONNX operator com.microsoft.SkipLayerNormalization"},
    "attn23": {"identity": "no ONNX operator Attention"},
    "rmsrope": {"identity": "no ONNX operator RotaryEmbedding"},
    "int4": {"identity": "no element type int4"},
    # OpenVINO does as if the attribute were not there; ONNX Runtime and the definition agree.
    "cubic": {"identity": "cannot run Resize with exclude_outside", "openvino": "times what rounding does"},
    "textin": dict.fromkeys(COMPILERS, "input 't' has type STRING"),
    "bf16in": dict.fromkeys(COMPILERS, "input 'x' has type BFLOAT16"),
}
"""What is not ``ok``, and a part of the reason; everything else is."""
if host.saturates_8_bit():
    OTHERWISE["qdqconv"] = dict.fromkeys(("onnxruntime", "openvino"), host.SEVEN_BITS)
NAMES = (
    *(
        "attn23",
        "below",
        "bf16in",
        "branch",
        "constout",
        "contrib",
        "cubic",
        "cumrev",
        "external",
        "half",
        "ifin",
        "int4",
    ),
    *(
        "local_function",
        "maxpool_nan",
        "names",
        "nested",
        "old_ir",
        "qdqconv",
        "reduce_noop",
        "rmsrope",
        "scattered",
        "step",
    ),
    *("textin", "tied", "weights_in_branch"),
)


def _said(folder: Path) -> Verdicts:
    reported_files.write(folder / "files")
    given = {
        path.stem: {"scheme": "onnx", "target": str(path), **OPTIONS.get(path.stem, {})}
        for path in (folder / "files").glob("*.onnx")
    }
    compilers: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in COMPILERS]
    with patch.object(trial_references, "SECONDS", FEW_S):
        return verdicts(given, compilers, BATCHES, folder)


@pytest.fixture(scope="module")
def said(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return within(900, _said, tmp_path_factory.mktemp("reported"))


@pytest.mark.usefixtures("compilers")
def test_every_file_was_tried(said: Verdicts) -> None:
    assert {name for name, _, _ in said} == set(NAMES)


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_right(said: Verdicts, name: str, compiler: str) -> None:
    for batch in BATCHES:
        verdict, reason = said[name, COMPILERS.index(compiler), batch]
        expected = OTHERWISE.get(name, {}).get(compiler)
        assert (verdict == "ok") == (expected is None), (batch, verdict, reason)
        assert (expected or "") in reason


@pytest.mark.usefixtures("compilers")
def test_the_definition_agrees_with_onnxruntime_about_what_openvino_leaves_out(tmp_path: Path) -> None:
    reported_files.write(tmp_path)
    given = {"x": np.random.default_rng(0).standard_normal((2, 2, 4, 4)).astype(np.float32)}
    (defined,) = ReferenceEvaluator(onnx.load(tmp_path / "cubic.onnx")).run(None, given)
    (found,) = onnxruntime.InferenceSession(tmp_path / "cubic.onnx").run(None, given)
    np.testing.assert_allclose(found, defined, atol=1e-5)
