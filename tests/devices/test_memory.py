from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.devices import memory

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "pod/job").mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/pod/job\n")
    return tmp_path


def limit(group: Path, most: str, used: int, inactive: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def left(groups: Path, machine: int) -> int:
    return memory.available_bytes(groups, groups / "membership", machine=machine)


def test_without_a_limit_the_machine_decides(groups: Path) -> None:
    limit(groups / "pod/job", "max", 5 * GIB, 0)
    assert left(groups, 3 * GIB) == 3 * GIB


def test_the_tightest_of_nested_groups_counts_and_caches_are_free(groups: Path) -> None:
    limit(groups / "pod/job", str(8 * GIB), GIB, 0)
    limit(groups / "pod", str(4 * GIB), 3 * GIB, GIB)
    assert left(groups, 16 * GIB) == 2 * GIB


def test_the_older_kind_of_control_group(tmp_path: Path) -> None:
    group = tmp_path / "memory/job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    (group / "memory.stat").write_text(f"cache 5\ntotal_inactive_file {GIB // 2}\n")
    (tmp_path / "membership").write_text("4:memory:/job\n1:cpu:/\n")
    assert left(tmp_path, 16 * GIB) == 3 * GIB // 2


def test_more_than_the_limit_is_nothing_left(groups: Path) -> None:
    limit(groups / "pod/job", str(GIB), 2 * GIB, 0)
    assert left(groups, GIB) == 0


def test_this_machine_has_memory() -> None:
    assert memory.available_bytes() > 0
