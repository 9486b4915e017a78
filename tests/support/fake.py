"""Makes the compilers for tests known under their names, in this process and in its children, as installed packages would."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mlflow_ngraph.compilers.registry import COMPILERS


@pytest.fixture(scope="module")
def fake_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compiler that misbehaves as it is told."""
    yield from _registered("fake", "mlflow_ngraph_testing.fake:FakeCompiler", tmp_path_factory)


@pytest.fixture(scope="module")
def broken_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compiler whose engines are wrong as it is told."""
    yield from _registered("broken", "mlflow_ngraph_testing.broken:BrokenCompiler", tmp_path_factory)


@pytest.fixture(scope="module")
def miscompiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compiler that computes an operator wrongly as it is told."""
    yield from _registered("miscompiler", "tests.support.miscompiling:Miscompiler", tmp_path_factory)


def _registered(name: str, entry: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put a distribution with the entry point on the import path."""
    monkeypatch = pytest.MonkeyPatch()
    site = tmp_path_factory.mktemp("site")
    info = site / f"{name}_ngraph-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-ngraph\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mlflow_ngraph.compilers]\n{name} = {entry}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    COMPILERS.__dict__.pop("entries", None)
    yield
    monkeypatch.undo()
    COMPILERS.__dict__.pop("entries", None)
