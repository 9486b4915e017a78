"""What a study leaves on a disk is its user's alone."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from mlflow_ngraph import home, user_cache
from mlflow_ngraph.processes.child import Child


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_home_is_private_and_an_older_one_stays_as_it_is(tmp_path: Path) -> None:
    assert mode(home.directory(tmp_path / "new")) == 0o700
    (tmp_path / "shared").mkdir(mode=0o755)
    assert mode(home.directory(tmp_path / "shared")) == 0o755


def test_the_cache_is_private(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user_cache.keep(user_cache.directory("results") / "table", b"figures")
    assert (user_cache.directory("results") / "table").read_bytes() == b"figures"
    assert mode(Path(platformdirs.user_cache_dir("mlflow-ngraph"))) == 0o700


def test_nobody_else_reads_the_log_of_a_child(processes: None, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "prepare.log"
    Child("mlflow_ngraph.execute.worker", {}, log=log).close()
    assert mode(log) == 0o600
