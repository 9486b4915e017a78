"""Makes the fake compiler known under its name, in this process and in its children, as an installed package would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.registry import COMPILERS


@pytest.fixture(scope="module")
def fake_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put a distribution with the entry point on the import path."""
    monkeypatch = pytest.MonkeyPatch()
    site = tmp_path_factory.mktemp("site")
    info = site / "fake_ngraph-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-ngraph\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mlflow_ngraph.compilers]\nfake = mlflow_ngraph.testing.fake:FakeCompiler\n"
    )
    monkeypatch.syspath_prepend(str(site))
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), str(Path.cwd()), inherited])))
    COMPILERS.__dict__.pop("entries", None)
    yield
    monkeypatch.undo()
    COMPILERS.__dict__.pop("entries", None)
