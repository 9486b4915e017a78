"""Docstrings begin with a noun or an imperative, not with a clause about their subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLAUSES = {"What", "Whether", "Whoever", "Which", "Of", "Why", "Who"}
"""First words that make a reader open the code to learn what is meant."""


def modules() -> Iterator[Path]:
    """Modules of the core and of the plugins, without tests."""
    yield from (ROOT / "mlflow_ngraph").rglob("*.py")
    yield from (ROOT / "plugins").glob("*/mlflow_ngraph_*/**/*.py")


def docstrings(path: Path) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes and functions, and those below attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def test_no_docstring_begins_with_a_clause() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.lineno}: {str(text.value).strip().splitlines()[0]}"
        for path in modules()
        for text in docstrings(path)
        if (first := re.match(r"\s*(\w+)", str(text.value))) and first[1] in CLAUSES
    ]
    assert not found, "\n".join(found)
