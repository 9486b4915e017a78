"""The files of a search survive a process that is killed while it writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_ngraph_tvm.records import cut_damaged_end


def lines(*content: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in content)


@pytest.mark.parametrize(
    "torn", [b"", b'[1, {"tra', b'[1, "whole but without its end"]', b"\x00\x00\x00\n", b"\xff\xfe\n"]
)
def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "records.json"
    path.write_bytes(lines([0, 1.5], [1, 2.5]) + torn)
    assert cut_damaged_end(path) == [[0, 1.5], [1, 2.5]]
    assert path.read_bytes() == lines([0, 1.5], [1, 2.5])


def test_what_follows_a_damaged_line_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "workloads.json"
    path.write_bytes(lines("a") + b"{torn\n" + lines("c"))
    assert cut_damaged_end(path) == ["a"]
    assert path.read_bytes() == lines("a")


def test_records_of_workloads_that_are_gone_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    path.write_bytes(lines([0, 1.0], [2, 1.0], [0, 2.0]))
    assert cut_damaged_end(path, lambda line: line[0] < 2) == [[0, 1.0]]


def test_lines_of_another_shape_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    path.write_bytes(lines([0, 1.0], {"no": "list"}))
    assert cut_damaged_end(path, lambda line: line[0] < 2) == [[0, 1.0]]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert cut_damaged_end(tmp_path / "none.json") == []
    assert not (tmp_path / "none.json").exists()
