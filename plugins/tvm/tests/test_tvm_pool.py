"""The processes that build and measure candidates: what they import, where they run, and that they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlflow_ngraph_tvm.pool import Candidate, Evaluator, Pool, Worker, WorkerError
from tests.support.installed import needs

pytestmark = [pytest.mark.long, needs("tvm")]

HOLD = """
import sys, time
from pathlib import Path
from mlflow_ngraph_tvm.pool import Pool
with Pool(Path(sys.argv[1]), 2, 1, 60.0) as pool:
    print(*pool.pids, flush=True)
    time.sleep(300)
"""


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_process_that_measures_has_the_threads_asked_for(tmp_path: Path, threads: int) -> None:
    with Pool(tmp_path / "pool", 1, threads, 60.0) as pool:
        assert pool.runner.threads == threads
        pids = pool.pids
        assert len(pids) == 2
        # What a process has imported from compiled code is mapped into its memory.
        for pid in pids:
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert "libtvm" in mapped
            assert "libtorch" not in mapped
            assert os.getpgid(pid) == os.getpgid(0)
    assert gone(pids)
    assert not (tmp_path / "pool").exists()


@pytest.mark.usefixtures("processes")
def test_files_in_the_current_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nt", "pickle", "struct", "random", "typing", "multiprocessing", "numpy", "tvm"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a stray file was imported')")
    monkeypatch.chdir(tmp_path)
    with Pool(tmp_path / "pool", 1, 1, 60.0) as pool:
        assert pool.runner.threads == 1


@pytest.mark.usefixtures("processes")
def test_a_candidate_that_cannot_be_built_costs_nobody_else(tmp_path: Path) -> None:
    with Pool(tmp_path / "pool", 1, 1, 60.0) as pool:
        reasons: list[str] = []
        evaluator = Evaluator("cpu", 1, 1, 0, 30.0)
        broken = Candidate(b"no pickle", [])
        assert pool.run([broken, broken], evaluator, float("inf"), reasons.append) == [None, None]
        assert len(reasons) == 2
        assert "building a candidate" in reasons[0]


@pytest.mark.usefixtures("processes")
def test_a_process_that_hangs_or_crashes_is_replaced(tmp_path: Path) -> None:
    worker = Worker(tmp_path, 1)
    worker.wait()
    first = worker.pid
    assert first is not None
    psutil.Process(first).suspend()
    with pytest.raises(WorkerError, match="did not finish within"):
        worker.request("build", (b"", ""), 0.5)
    assert gone([first])
    with pytest.raises(WorkerError, match="Error"):
        worker.request("build", (b"no pickle", str(tmp_path / "k.so")), 60.0)
    second = worker.pid
    assert second not in (None, first)
    psutil.Process(second).kill()
    with pytest.raises(WorkerError, match="signal 9"):
        worker.request("build", (b"", ""), 60.0)
    worker.close()


@pytest.mark.usefixtures("processes")
def test_processes_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "pool")], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        # The parent alone, not its group: as when the machine runs out of memory.
        parent.kill()
        parent.wait()
        assert gone(pids)
    finally:
        parent.kill()
        parent.wait()
