"""docs/reference/compilers.md says all there is to say about flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.compilers.registry import COMPILERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compilers.md"
BUILT_IN = ["identity", "torchscript", "torch-compile", "onnxruntime", "openvino", "tensorrt", "tensorrt-rtx", "tvm"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_flag_is_documented_with_its_default(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert section, f"no section on {name}"
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    fields = COMPILERS.get(name).flags_type.model_fields
    for flag, field in fields.items():
        shown = "unset" if field.default is None else f"`{str(field.default).lower()}`"
        assert any(f"`{flag}`" in row and f"| {shown} |" in row for row in rows), f"no row for {flag}, default {shown}"
    assert len(rows) == len(fields), "a row for a flag that does not exist"


@pytest.mark.parametrize("name", BUILT_IN)
def test_precisions_and_modes_are_documented(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    kind = COMPILERS.get(name)
    assert f"Precisions: {', '.join(kind.precisions)}." in section
    assert f"Modes: {', '.join(kind.modes)}." in section
