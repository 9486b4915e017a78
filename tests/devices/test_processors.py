from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_ngraph.devices import processors


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "pod/job").mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/pod/job\n")
    return tmp_path


def quota(groups: Path) -> float | None:
    found = processors.cpu_quota(groups, groups / "membership")
    return None if found is None else found.processors


def test_without_a_quota_there_is_none(groups: Path) -> None:
    (groups / "pod/job/cpu.max").write_text("max 100000\n")
    assert quota(groups) is None


def test_the_tightest_of_nested_quotas_counts(groups: Path) -> None:
    (groups / "pod/job/cpu.max").write_text("400000 100000\n")
    (groups / "pod/cpu.max").write_text("150000 100000\n")
    assert quota(groups) == 1.5


def test_the_older_kind_of_control_group(tmp_path: Path) -> None:
    group = tmp_path / "cpu,cpuacct/job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("250000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "membership").write_text("4:cpu,cpuacct:/job\n3:memory:/other\n0::/\n")
    assert quota(tmp_path) == 2.5


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert processors.cpu_quota(tmp_path, tmp_path / "membership") is None


def test_the_affinity_mask_is_respected() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert processors.available() == 1
    finally:
        os.sched_setaffinity(0, mask)


def test_a_quota_below_one_processor_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "cpu_quota", lambda: processors.Quota(0.5, Path("/nowhere")))
    assert processors.available() == 1
