"""One form for every table that people read."""

from __future__ import annotations

import pytest

from mlflow_ngraph.tables.sheet import Cell, Column, Sheet, escaped, first, fitting, markdown, number

SHEET = Sheet(
    "Engines",
    ["name", number("samples/s", group="batch 8")],
    [
        ("a", Cell("2.5", "[2.4, 2.6]", tone="best")),
        ("b", Cell("", note="too slow")),
        ("c", None),
        ("d", Cell("–", note="too slow")),
    ],
    ["of xeon"],
    one="engine",
)


def test_what_is_said_of_several_rows_stands_below_once() -> None:
    assert markdown(SHEET).splitlines() == [
        "### Engines",
        "",
        "| name | batch 8: samples/s |",
        "| :-- | --: |",
        "| a | **2.5 [2.4, 2.6]** |",
        "| b | ¹ |",
        "| c | – |",
        "| d | – ¹ |",
        "",
        "- ¹ too slow (2 engines)",
        "- of xeon",
    ]


def test_lines_and_commands_stand_beside_tables() -> None:
    text = markdown("a < b", Cell("pull m", tone="command"), Sheet("", [Column("x")], [(True,), ([1, 2],)]))
    assert text == "a \\< b\n\n```console\npull m\n```\n\n| x |\n| :-- |\n| yes |\n| 1, 2 |"


def test_as_many_rows_as_fit() -> None:
    long = Sheet("", ["number"], [(place,) for place in range(100)])
    short = fitting(long, 300, "elsewhere")
    assert 280 < len(short) <= 300
    assert f"{100 - short.count('| ') + 2} more rows elsewhere." in short
    assert first(long, 100, "elsewhere") is long


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *(("onnxruntime[opt_level=2]", "onnxruntime[opt_level=2]"), ("_so_", r"\_so\_"), ("a*b", r"a\*b")),
        *(("[a](b)", r"[a]\(b)"), ("<b> | $x", r"\<b> \| \$x"), ("# a", r"\# a"), ("a\n\x1b[1m", "a \ufffd[1m")),
    ],
)
def test_text_stays_text(text: str, written: str) -> None:
    assert escaped(text) == written
