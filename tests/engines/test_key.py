"""Equal things go into a compilation: equal keys; anything else: another key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.engines import key
from mlflow_ngraph.engines.key import Recipe

MATERIALS: dict[str, Any] = {
    "digest": "0123",
    "seed": 0,
    "versions": {"torch": "2.13.0", "onnx": "1.19", "onnxscript": "0.5", "timm": "1.0", "numpy": "2.0"},
}
texts = st.text(max_size=6)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), texts
)
versions = st.dictionaries(texts, texts, max_size=3)
recipes = st.builds(
    Recipe,
    model=texts,
    seed=st.integers(0, 3),
    exporters=versions,
    batch_sizes=st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(tuple),
    compiler=texts,
    flags=st.dictionaries(texts, values, max_size=4),
    target=st.fixed_dictionaries(
        {"precision": texts, "mode": texts, "threads": st.none() | st.integers(1, 8), "accelerator": texts}
    ),
    requires=versions,
    package=texts,
    code=texts,
)


def content(recipe: Recipe) -> tuple[object, ...]:
    """What a recipe says, in a form in which equality is what a reader takes for equal."""
    plain = [(field.name, getattr(recipe, field.name)) for field in fields(recipe)]
    return tuple((name, frozen(tuple(sorted(value)) if name == "batch_sizes" else value)) for name, value in plain)


def frozen(value: object) -> object:
    """A value that tells 1 from 1.0 and from True."""
    if isinstance(value, dict):
        return frozenset((name, frozen(inner)) for name, inner in value.items())
    return type(value).__name__, repr(value)


@given(recipes)
def test_the_order_of_flags_and_batch_sizes_does_not_count(recipe: Recipe) -> None:
    turned = replace(
        recipe,
        flags=dict(reversed(list(recipe.flags.items()))),
        requires=dict(reversed(list(recipe.requires.items()))),
        batch_sizes=recipe.batch_sizes[::-1],
    )
    assert turned.key() == recipe.key()


@given(recipes, recipes)
def test_two_recipes_have_the_same_key_exactly_if_they_say_the_same(one: Recipe, other: Recipe) -> None:
    assert (one.key() == other.key()) == (content(one) == content(other))


@given(recipes, st.data())
def test_any_change_changes_the_key(recipe: Recipe, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([field.name for field in fields(recipe)]))
    changed = replace(recipe, **{name: getattr(data.draw(recipes), name)})
    assert (changed.key() == recipe.key()) == (content(changed) == content(recipe))


def of(
    compiler: str = "onnxruntime",
    flags: dict[str, object] | None = None,
    target: Mapping[str, Any] = MappingProxyType({}),
    materials: Mapping[str, Any] = MappingProxyType({}),
    batch_sizes: Sequence[int] = (1, 2),
) -> str:
    return key.recipe(create(compiler, flags), Target(**target), batch_sizes, {**MATERIALS, **materials}).key()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "change",
    [
        {"flags": {"spinning": False}},
        {"compiler": "openvino"},
        {"batch_sizes": (1,)},
        {"target": {"threads": 3}},
        {"target": {"mode": "async"}},
        {"target": {"precision": "fp16"}},
        {"target": {"accelerator": "cuda"}},
        {"materials": {"digest": "4567"}},
        {"materials": {"versions": {**MATERIALS["versions"], "onnxscript": "0.6"}}},
    ],
    ids=str,
)
def test_what_goes_into_a_compilation(change: dict[str, Any]) -> None:
    assert of() == of()
    assert of(**change) != of()


def test_what_does_not() -> None:
    """A flag that is given with its default, and packages that the compiler's formats do not come from."""
    assert of(flags={"spinning": True}) == of()
    assert of(materials={"versions": {**MATERIALS["versions"], "timm": "9.9", "numpy": "9.9"}}) == of()


def test_another_version_of_the_package_of_the_compiler_or_of_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of()
    with monkeypatch.context() as patch:
        patch.setattr(key, "__version__", "99.0")
        assert of() != before
    with monkeypatch.context() as patch:
        patch.setattr(type(create("onnxruntime")), "requires", lambda self, target: {"onnxruntime": "99.0"})
        assert of() != before
    with monkeypatch.context() as patch:
        patch.setattr(key, "_code_digest", lambda kind: "another")
        assert of() != before
    assert of() == before


def test_the_code_of_an_adapter_counts_wherever_it_lives(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "adapter.py").write_text(
        "from mlflow_ngraph_testing.fake import FakeCompiler\nclass Mine(FakeCompiler): ...\n"
    )
    (package / "helper.py").write_text("LEVEL = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from elsewhere.adapter import Mine  # type: ignore[import-not-found]

    before = key._code_digest.__wrapped__(Mine)
    assert key._code_digest.__wrapped__(Mine) == before
    (package / "helper.py").write_text("LEVEL = 2\n")
    assert key._code_digest.__wrapped__(Mine) != before
