"""Modules as people have them, on the baseline, and on the runtimes that their reports are about: each verdict is the one that is right."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from mlflow_ngraph.workloads import trial_references
from mlflow_ngraph_testing.steps import within
from tests.support.zoo.quick import Said, verdicts
from tests.workloads.reported import INPUTS

pytestmark = pytest.mark.long

BATCHES = (1, 3, 8)
RUNTIMES = ("onnxruntime", "openvino")
ABOUT_RUNTIMES = (
    *(
        "LayerNormOffset",
        "Normed",
        "Var",
        "Resid",
        "SoftmaxBig",
        "TopK",
        "MaxPoolNaN",
        "NonZero",
        "BoolMask",
        "Bicubic",
    ),
    *("MaxPoolCeil", "AvgPoolCeil", "Int64Ids", "HalfInside", "Uniq", "ComplexMix", "Spy"),
)
WRONG = {
    # What OpenVINO alone computes otherwise than PyTorch and ONNX Runtime do.
    "MaxPoolCeil": "has shape",
    "AvgPoolCeil": "times what rounding does",
    "Int64Ids": "times what rounding does",
    "ComplexMix": "times what rounding does",
}
REFUSED = {"exits": "it ended the process: no licence found"}
MISSING = "torchvision was built for another torch: install the one that fits"
SECONDS = 900.0
FEW_S = 0.5
"""For the trials of a model, in place of the time that a study has."""


def _said(folder: Path) -> dict[tuple[str, str, int], Said]:
    given = {name: {"target": f"tests.workloads.reported:{name}", "inputs": INPUTS[name]} for name in INPUTS}
    found = {}
    with patch.object(trial_references, "SECONDS", FEW_S):
        for name, one in given.items():
            compilers = ("identity", *(RUNTIMES if name in ABOUT_RUNTIMES else ()))
            said = verdicts({name: one}, [(compiler, {}) for compiler in compilers], BATCHES, folder)
            found.update({(name, compilers[place], batch): words for (_, place, batch), words in said.items()})
    return found


@pytest.fixture(scope="module")
def said(processes: None, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], Said]:
    return within(SECONDS, _said, tmp_path_factory.mktemp("reported"))


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", [name for name in INPUTS if name != "Detect"])
def test_the_verdict_is_right(said: dict[tuple[str, str, int], Said], name: str, batch: int) -> None:
    for compiler in ("identity", *(RUNTIMES if name in ABOUT_RUNTIMES else ())):
        verdict, reason = said[name, compiler, batch]
        expected = WRONG.get(name) if compiler == "openvino" else REFUSED.get(name)
        assert (verdict == "ok") == (expected is None), (compiler, verdict, reason)
        assert (expected or "") in reason


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("batch", BATCHES)
def test_operators_of_torchvision_run_or_are_said_to_be_missing(
    said: dict[tuple[str, str, int], Said], batch: int
) -> None:
    verdict, reason = said["Detect", "identity", batch]
    assert verdict == "ok" or MISSING in reason
