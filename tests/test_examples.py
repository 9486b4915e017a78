"""The examples are what the documents say they are, also where their compilers are not installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import indent
from types import ModuleType

import pytest
import yaml

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.study import parse
from mlflow_ngraph_testing.fake import Behaviour, FakeCompiler, FakeFlags
from tests.support.scripts import loaded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parents[1]
IREE = ROOT / "examples/iree"
GUIDE = ROOT / "docs/how-to/write-an-adapter.md"


def blocks(info: str) -> list[str]:
    return re.findall(rf"^```{info}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The adapter's module, which imports nothing of IREE by itself."""
    return loaded(IREE / "mlflow_ngraph_iree/compiler.py", "iree_example")


def test_the_adapter_is_short() -> None:
    assert len((IREE / "mlflow_ngraph_iree/compiler.py").read_text().splitlines()) <= 150


@pytest.mark.usefixtures("compilers")
def test_the_adapter_says_what_it_is_wherever_it_is(module: ModuleType) -> None:
    compiler = module.IREE(module.IREEFlags())
    assert compiler.availability().available or "pip install iree-base-compiler" in compiler.availability().hint
    assert compiler.requires(Target()) == compiler.requires(Target())
    table = (IREE / "README.md").read_text()
    for name, flag in module.IREEFlags.model_fields.items():
        assert flag.description
        default = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
        assert f"| `{name}` | `{default}` |" in table


def _closed_up(code: str) -> str:
    """With one empty line where there are several: functions stand further apart than methods."""
    return re.sub(r"\n{3,}", "\n\n", code)


def test_the_guide_shows_the_code_that_there_is() -> None:
    sources = [_closed_up(path.read_text()) for path in IREE.rglob("*.py")]
    shown = [_closed_up(block) for block in blocks("python")]
    assert len(shown) > 5
    for block in shown:
        # A method is shown without its indentation.
        assert any(text in source for source in sources for text in (block, indent(block, " " * 4))), block


def test_the_guide_shows_the_entry_point_that_there_is() -> None:
    own, fake = (tomllib.loads(block)["project"]["entry-points"] for block in blocks("toml"))
    package = tomllib.loads((IREE / "pyproject.toml").read_text())
    assert own == package["project"]["entry-points"]
    assert fake == {"mlflow_ngraph.compilers": {"fake": f"{FakeCompiler.__module__}:{FakeCompiler.__name__}"}}


@pytest.mark.usefixtures("fake_compiler")
def test_the_guide_shows_a_study_that_is_valid() -> None:
    (text,) = blocks("yaml")
    assert [choice.name for choice in parse(yaml.safe_load(text), "guide").compilers].count("fake") == 3


def test_the_guide_explains_every_behaviour_of_the_fake_compiler() -> None:
    text = GUIDE.read_text()
    rows = "".join(line for line in text.splitlines() if line.startswith("| `"))
    for behaviour in Behaviour.__args__:  # type: ignore[attr-defined]
        assert f"`{behaviour}`" in rows
    for stage in FakeFlags.model_fields["at"].annotation.__args__:  # type: ignore[union-attr]
        assert f"`{stage}`" in text
