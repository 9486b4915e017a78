"""Workers that are forked from a process that has imported PyTorch already."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from mlflow_ngraph.execute import worker
from mlflow_ngraph.processes import environment, fork_server
from mlflow_ngraph.processes.child import Child
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse

ASKED = """
    import json, os, sys
    here = {
        "imported": "torch" in sys.modules,
        "parent": os.getppid(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "caches": os.environ["TORCHINDUCTOR_CACHE_DIR"],
        "said": os.environ.get("SAID"),
        "group": os.getpgrp() == os.getpid(),
        "path": [place for place in sys.path if place.endswith(("main-of-models", "more"))],
    }
    import torch
    here["torch_threads"] = torch.get_num_threads()
    json.dump(here, open("asked.json", "w"))
"""


def ask(directory, warden, env):
    """What a worker that is to be forked finds where it is."""
    (directory / "asked.py").write_text(textwrap.dedent(ASKED))
    child = Child(worker.__name__, env, directory / "child.log", warden=warden, forked=True)
    with closing(child):
        child.request("import", 60, modules=["asked"], blocked=[], freed_memory="return")
    return json.loads((directory / "asked.json").read_text()), child


@pytest.fixture
def warden(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    with closing(Warden()) as found:
        yield found


@pytest.mark.usefixtures("processes")
def test_a_forked_worker_has_imported_pytorch_and_is_otherwise_as_one_of_its_own(tmp_path, warden, monkeypatch):
    elsewhere = os.environ["PYTHONPATH"]
    with fork_server.shared():
        found = []
        for threads in (1, 3):
            monkeypatch.setenv("SAID", f"with {threads}")
            places = [str(tmp_path / place) for place in ("main-of-models", "more")[:threads]]
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*places, elsewhere]))
            env = environment.of_threads(threads, tmp_path / f"scratch-{threads}", patient=True)
            here, child = ask(tmp_path, warden, env)
            assert here["imported"]
            assert here["group"]
            assert here["threads"] == str(threads)
            assert here["torch_threads"] == threads
            assert here["caches"] == str(tmp_path / f"scratch-{threads}" / "inductor")
            assert here["path"] == places
            assert here["said"] == f"with {threads}"
            assert child.cpu_s is not None
            found.append(here["parent"])
        assert found[0] == found[1] != os.getpid()


@pytest.mark.usefixtures("processes")
def test_what_importing_has_read_must_not_differ(tmp_path, warden):
    env = environment.of_threads(1, tmp_path, patient=True)
    with fork_server.shared():
        here, _ = ask(tmp_path, warden, {**env, "OMP_WAIT_POLICY": "active"})
    assert not here["imported"]
    assert here["parent"] == os.getpid()


@pytest.mark.usefixtures("processes")
def test_a_server_that_was_killed_is_replaced(tmp_path, warden):
    env = environment.of_threads(1, tmp_path, patient=True)
    with fork_server.shared():
        before, _ = ask(tmp_path, warden, env)
        psutil.Process(before["parent"]).send_signal(signal.SIGKILL)
        psutil.Process(before["parent"]).wait(5)
        after, _ = ask(tmp_path, warden, env)
    assert after["imported"]
    assert after["parent"] not in {before["parent"], os.getpid()}


KILLED = """
    import os, signal, sys
    from mlflow_ngraph.processes import environment, fork_server

    with fork_server.shared():
        server = fork_server.serving(environment.of_threads(None, None, patient=True))
        server.fork("json", dict(os.environ), 0, 1, 2).wait()
        print(server._scratch.name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("processes")
def test_nothing_is_left_when_its_parent_is_killed(tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(textwrap.dedent(KILLED))
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    folder = Path(ended.stdout.strip())
    for _ in range(200):
        if not folder.exists():
            break
        time.sleep(0.05)
    assert not folder.exists()


@pytest.mark.usefixtures("compilers", "timed_alone")
def test_what_measures_is_not_forked(tmp_path, monkeypatch):
    forked = []
    fork = fork_server.ForkServer.fork

    def listed(server, module, env, *pipes):
        forked.append(Path(env["TORCHINDUCTOR_CACHE_DIR"]).parent.name)
        return fork(server, module, env, *pipes)

    monkeypatch.setattr(fork_server.ForkServer, "fork", listed)
    given = {"name": "alone", "workloads": ["block:mha?width=16"], "compilers": ["identity"], "batch_sizes": [1]}
    few = {"repetitions": 2, "slice_repetitions": 1, "limits": {"verify_seconds": 1}, "cache": "off"}
    outcome = run_study(parse({**given, **few}), home=tmp_path, offline=True)
    assert [cell.verdict for lane in outcome.record.lanes.values() for cell in lane.cells.values()] == ["ok"]
    purposes = {name.rpartition("-")[2] for name in forked}
    assert {"build", "verify"} <= purposes
    assert "run" not in purposes
