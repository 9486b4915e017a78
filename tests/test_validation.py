"""Findings of pydantic in words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from mlflow_ngraph.validation import explain


class Item(BaseModel):
    size: int
    kind: str = ""


class Model(BaseModel):
    items: list[Item] | dict[str, Item]


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ({"a": {"size": "large"}}, "items.a.size: expected a whole number, found 'large'"),
        ([{"size": "large"}], "items.0.size: expected a whole number, found 'large'"),
        (3, "items: expected a list, found 3 (and 1 more)"),
    ],
)
def test_what_is_wrong_within_one_form_is_not_blamed_on_the_other(items: Any, said: str) -> None:
    with pytest.raises(ValidationError) as found:
        Model.model_validate({"items": items})
    assert explain(found.value, Model) == said
