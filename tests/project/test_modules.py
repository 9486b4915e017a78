"""A module is short enough to be read at once."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 400
"""Lines."""


def test_no_module_of_core_or_plugins_is_longer_than_it_may_be() -> None:
    modules = [*ROOT.glob("mlflow_ngraph/**/*.py"), *ROOT.glob("plugins/*/mlflow_ngraph_*/**/*.py")]
    assert len(modules) > 500
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}
