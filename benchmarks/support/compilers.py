"""Makes a compiler of a benchmark known under its name, in this process and in its children."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow_ngraph.compilers.registry import COMPILERS


@contextmanager
def registered(name: str, entry: str) -> Iterator[None]:
    """Put a distribution with the entry point ``name = entry`` on the import path, as installing it would."""
    here = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as site:
        info = Path(site, f"benchmark_{name}-1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: benchmark-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[mlflow_ngraph.compilers]\n{name} = {entry}\n")
        inherited = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, here, inherited]))
        sys.path[:0] = [site, here]
        COMPILERS.__dict__.pop("entries", None)
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = inherited
            sys.path[:2] = []
            COMPILERS.__dict__.pop("entries", None)
