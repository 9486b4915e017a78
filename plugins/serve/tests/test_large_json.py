"""What is read and written in pieces is what the standard library reads and writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlflow_ngraph_serve import large_json


def refused(text: str) -> Any:
    raise ValueError(text)


NUMBERS = [number / 7 for number in range(40_000)]


@pytest.mark.parametrize(
    "content",
    [
        {"inputs": [{"name": "x", "shape": [40_000], "data": NUMBERS}, {"name": "y", "data": [1, None, True]}]},
        {"inputs": {"x": [[NUMBERS[:100]] * 30] * 10, "y": [], "z": [[]]}},
        {"instances": [{"x": NUMBERS[:50], "text": 'a "quoted", [bracketed] é'}] * 300},
        {"inputs": [[1, [2, 3]], "]", ["]", ","]] * 3000},
        NUMBERS,
        3.5,
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_make_the_same_whole(content: Any, indent: int | None) -> None:
    assert large_json.loads(json.dumps(content, indent=indent), refused) == content
    assert json.loads(large_json.dumps(content, 40_000)) == json.loads(large_json.dumps(content, 0)) == content


@pytest.mark.parametrize("tail", [",]", ",,1]", " 1]", ",NaN]", ",}", ",1", "", ",[}]", ',"]', "]]"])
def test_what_is_no_json_is_none_in_pieces(tail: str) -> None:
    for count in (5, 20_000, 40_000):
        text = json.dumps(NUMBERS[:count])[:-1] + tail
        with pytest.raises(ValueError, match=r"\w"):
            large_json.loads(text, refused)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("nan")], {"x": [1.0] * 9000 + [float("nan")]}])
def test_what_json_does_not_have_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        large_json.dumps(value, 9001)
    with pytest.raises(ValueError, match=r"\w"):
        large_json.dumps(value, 1)


def test_brackets_without_end_are_an_error_of_the_text() -> None:
    with pytest.raises((ValueError, RecursionError)):
        large_json.loads("[" * 200_000, refused)
