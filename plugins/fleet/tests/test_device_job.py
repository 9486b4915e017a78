"""A real study as a job, and the job that takes its place when nobody heard of its end."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from mlflow_ngraph import study as studies
from mlflow_ngraph.execute import journal
from mlflow_ngraph_fleet import description
from mlflow_ngraph_fleet.bundle import Travelling
from mlflow_ngraph_fleet.engine import Job
from mlflow_ngraph_fleet.wire import Listener
from tests.support.local_engine import LocalEngine

pytestmark = pytest.mark.long


def test_a_study_that_has_ended_is_not_measured_again(tmp_path: Path, compilers: None, lock_folder: Path) -> None:
    home = tmp_path / "device"
    described = {"host": "h", "python": sys.executable, "home": str(home), "env": {"NGRAPH_LOCK_DIR": str(lock_folder)}}
    fleet = description.parse({"head": {"host": "h"}, "devices": {"host": described}}, tmp_path / "fleet.yaml")
    asked = {"name": "tiny", "workloads": ["block:conv?width=8&depth=1"], "compilers": ["identity"], "batch_sizes": [1]}
    study = studies.parse({**asked, "repetitions": 3, "warmup": {"max_seconds": 0.1}})
    packed = Travelling.pack(study, tmp_path / "parts")
    about = {"resume": "never", "run_id": "r", "fleet_study": "tiny-1"}
    bundle = packed.bundle(fleet, "host", tmp_path / "files", **about)
    ends = []
    with LocalEngine(tmp_path / "jobs") as engine:
        for name in ("first", "second"):
            engine.submit(Job(name, "host", bundle.command, bundle.files, bundle.parts))
            engine.wait(name, 300)
            listener = Listener()
            events = [said for said in listener.hear(engine.logs(name)) if not isinstance(said, str)]
            assert events[-1]["event"] == "ended", engine.logs(name)
            ends.append((events[-1]["code"], events[-1]["study_id"], listener.journal))
        (directory,) = (home / "studies").iterdir()
        content = (directory / journal.FILE_NAME).read_bytes()
        assert ends == [(0, directory.name, content)] * 2
        assert "session_started" in engine.logs("first")
        assert "session_started" not in engine.logs("second")

        # One that was lost on its way goes on, though it was to start anew.
        journal_file = directory / journal.FILE_NAME
        lines = journal_file.read_bytes().splitlines(keepends=True)
        begun = next(number for number, line in enumerate(lines) if b'"session_started"' in line)
        journal_file.write_bytes(b"".join(lines[: begun + 1]))
        shutil.rmtree(directory / "engines", ignore_errors=True)
        engine.submit(Job("third", "host", bundle.command, bundle.files, bundle.parts))
        engine.wait("third", 300)
    assert [path.name for path in (home / "studies").iterdir()] == [directory.name]
