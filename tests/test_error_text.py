"""What runtimes really said when they failed, and the one line that is to be left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from mlflow_ngraph.error_text import LONGEST, for_strangers, one_line
from mlflow_ngraph.errors import EngineError, UnsupportedError, UsageError

FAILURES = Path(__file__).parent / "data/failures"
CAUSED_BY = "\n=====CAUSED BY=====\n"


def failures() -> Iterator[Any]:
    for table in sorted(FAILURES.glob("*.yaml")):
        for name, line in yaml.safe_load(table.read_text(encoding="utf-8")).items():
            yield pytest.param(FAILURES / table.stem / f"{name}.txt", line, id=f"{table.stem}/{name}")


def read(path: Path) -> BaseException:
    """The exception of a file, with its causes."""
    links: list[BaseException] = []
    for part in path.read_text(encoding="utf-8").removesuffix("\n").split(CAUSED_BY):
        kind, _, text = part.partition("\n")
        links.append(type(kind.rpartition(".")[2], (Exception,), {})(text))
        if len(links) > 1:
            links[-2].__cause__ = links[-1]
    return links[0]


@pytest.mark.parametrize(("path", "line"), list(failures()))
def test_what_a_runtime_said_becomes_one_telling_line(path: Path, line: str) -> None:
    assert one_line(read(path)) == line


def test_no_text_is_left_out_of_the_tables() -> None:
    written = {path.relative_to(FAILURES).as_posix() for path in FAILURES.glob("*/*.txt")}
    tables = {table.stem: yaml.safe_load(table.read_text(encoding="utf-8")) for table in FAILURES.glob("*.yaml")}
    assert written == {f"{runtime}/{name}.txt" for runtime, table in tables.items() for name in table}


@pytest.mark.parametrize(("path", "line"), list(failures()))
def test_a_line_is_one_bounded_and_says_something(path: Path, line: str) -> None:
    assert len(line) <= LONGEST
    assert "\n" not in line
    assert not line.endswith((":", "with a message"))
    for boilerplate in ("For more information", "TORCH_LOGS", "Exception from", "Check '", "Stack trace", "frame #"):
        assert boilerplate not in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("", "RuntimeError"),
        ("one\n\n  two:\n", "one two"),
        ("-- Dropout-20 with a message:", "Dropout-20"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: the cause\n',
            "ValueError: the cause in f at a.py:1: g()",
        ),
        (
            "C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\nx.cpp: In function f\nx.cpp:3:1: error: no member y\n",
            "x.cpp:3:1: error: no member y",
        ),
    ],
)
def test_what_is_no_news_is_left_out(text: str, line: str) -> None:
    assert one_line(RuntimeError(text)) == line


def test_a_long_line_keeps_both_ends() -> None:
    line = one_line(ValueError("begin" + "x" * 100_000 + "end"))
    assert len(line) == LONGEST
    assert line.startswith("ValueError: beginxx")
    assert line.endswith("xxend")


def module(path: Path, name: str, code: str) -> ModuleType:
    """The code as a module that is imported from a file."""
    path.write_text(code, encoding="utf-8")
    found = ModuleType(name)
    exec(compile(code, str(path), "exec"), found.__dict__)
    return found


def test_the_line_of_the_model_that_led_to_an_error_is_named(tmp_path: Path) -> None:
    library = module(tmp_path / "functional.py", "torch.nn.functional", "def relu(x):\n    raise ValueError('no')\n")
    model = module(
        tmp_path / "my_model.py",
        "my_model",
        "def helper(x):\n    return relu(x)\n\nclass Model:\n    def forward(self, x):\n        return helper(x)\n",
    )
    model.relu = library.relu  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="no") as caught:
        model.Model().forward(1)
    assert one_line(caught.value) == "ValueError: no in helper at my_model.py:2: return relu(x)"
    with pytest.raises(ValueError, match="no") as caught:
        model.helper(1)
    assert one_line(caught.value) == "ValueError: no", "not in a model's forward"


def test_the_operator_that_only_the_outer_exception_names_stands_before_the_cause() -> None:
    error = RuntimeError("Error converting operator Einsum, with inputs: [x, w]\n")
    error.__cause__ = RuntimeError("Cannot broadcast extents 4 and 3")
    assert one_line(error) == "Einsum: Cannot broadcast extents 4 and 3"


def test_what_this_package_says_is_told_as_it_is() -> None:
    error = UnsupportedError("tvm has no operator Det")
    error.__cause__ = RuntimeError("something else")
    assert one_line(error) == "tvm has no operator Det"


TORCHSCRIPT = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File "code/__torch__/models.py", line 6, in forward
    _0 = torch.sum(torch.embedding(CONSTANTS.c0, x), [1])
                   ~~~~~~~~~~~~~~~ <--- HERE

Traceback of TorchScript, original code (most recent call last):
/home/somebody/site-packages/torch/nn/functional.py(2615): embedding
/home/somebody/models.py(7): forward
RuntimeError: index out of range in self
"""


@pytest.mark.parametrize(
    ("error", "cause", "line"),
    [
        (EngineError("/home/a/package: whatever"), RuntimeError(TORCHSCRIPT), "index out of range in self"),
        (EngineError("/home/a/package: whatever"), MemoryError(), "MemoryError"),
        (EngineError("/home/a/package: engine/model.bin has changed"), None, "package: engine/model.bin has changed"),
        (EngineError("x"), RuntimeError("no '/home/a/weights.bin' in\n/tmp/d/e.py"), "no 'weights.bin' in e.py"),
        (UsageError("input 'x' has shape (1, 2), 3 samples/s"), None, "input 'x' has shape (1, 2), 3 samples/s"),
    ],
)
def test_strangers_learn_nothing_of_this_machine(error: Exception, cause: Exception | None, line: str) -> None:
    error.__cause__ = cause
    assert for_strangers(error) == line


def test_strangers_get_no_more_than_a_line() -> None:
    assert len(for_strangers(UsageError("word\n" * 1000))) <= LONGEST
