"""Every way a child can end, with real processes that really end that way."""

import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from mlflow_ngraph.execute import worker as module
from mlflow_ngraph.processes import environment, fork_server
from mlflow_ngraph.processes.child import Child, ChildFailure, OutOfTime
from mlflow_ngraph.processes.interruption import signal_name
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.base import Init


@pytest.fixture(params=[False, True], ids=["spawned", "forked"])
def child(request, tmp_path, monkeypatch):
    """Starts a worker that can import modules, given as source text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))

    @contextmanager
    def start(left=lambda: math.inf, **modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        env = environment.of_threads(1, tmp_path / "scratch", patient=True)
        with fork_server.shared(), closing(Warden()) as warden:
            worker = Child(module.__name__, env, tmp_path / "child.log", warden=warden, forked=request.param, left=left)
            yield worker
            worker.close()

    return start


def run_module(worker, name, timeout=30.0):
    return worker.request("import", timeout, modules=[name], blocked=[], freed_memory="keep")


def gone(pid, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


LITTERS = """
import pathlib, sys, tempfile
folder = tempfile.mkdtemp()
(pathlib.Path(folder) / "unpacked").write_bytes(bytes(1 << 20))
print("littered", folder, file=sys.stderr, flush=True)
"""


def litter(log, seconds=20.0):
    """The folder that a child says it has left temporary files in."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        told = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("littered ")]
        if told:
            return Path(told[0])
        time.sleep(0.02)
    raise AssertionError("nothing was littered")


def gone_folder(folder, seconds=5.0):
    end = time.monotonic() + seconds
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return not folder.exists()


@pytest.mark.usefixtures("processes")
def test_results_come_back_and_the_child_stays(child):
    with child(fine="print('noise on standard output')") as worker:
        assert run_module(worker, "fine") is None
        assert run_module(worker, "fine") is None
        assert "noise on standard output" in worker.tail()


@pytest.mark.usefixtures("processes")
def test_of_a_log_without_end_the_beginning_and_the_end_are_kept(child, tmp_path):
    with child(talks="print('at first'); print('noise ' * 1_000_000); print('at last')") as worker:
        run_module(worker, "talks")
        assert "at last" in worker.tail()
    log = (tmp_path / "child.log").read_text()
    assert len(log) < 2_000_000
    assert log.startswith("at first\nnoise")
    assert log.endswith("noise \nat last\n")
    (left_out,) = re.findall(r"^\[(\d+) bytes were left out here\]$", log, re.MULTILINE)
    kept = len(log) - len(f"\n[{left_out} bytes were left out here]\n")
    assert kept + int(left_out) == len("at first\n" + "noise " * 1_000_000 + "\nat last\n")


@pytest.mark.usefixtures("processes")
def test_a_child_ends_when_the_time_of_the_study_is_up(child):
    left = [math.inf]
    with child(lambda: left[0], fine="", slow="import time; time.sleep(600)") as worker:
        run_module(worker, "fine")
        left[0] = 0.2
        with pytest.raises(OutOfTime, match="import was ended, because the time of the study was up"):
            run_module(worker, "slow")
        assert gone(worker.pid)


@pytest.mark.usefixtures("processes")
def test_an_exception_is_an_answer_and_the_child_stays(child):
    with child(wrong="raise ValueError('of its own making')") as worker:
        with pytest.raises(ChildFailure, match="ValueError: of its own making") as caught:
            run_module(worker, "wrong")
        assert caught.value.verdict is Verdict.FAILED
        assert "Traceback" in caught.value.tail
        assert run_module(worker, "json") is None


@pytest.mark.usefixtures("processes")
def test_out_of_memory_in_python_is_named(child):
    with child(big="raise MemoryError('cannot have 10 TB')") as worker:
        with pytest.raises(ChildFailure, match="out of memory: cannot have 10 TB") as caught:
            run_module(worker, "big")
        assert caught.value.verdict is Verdict.OOM


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV during import"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL during import"),
        ("import os; os._exit(7)", "exited with code 7 during import"),
    ],
)
def test_a_child_that_ends_is_a_crash_with_its_last_words(child, source, reason):
    with child(ends=f"import sys; print('last words', file=sys.stderr, flush=True)\n{source}") as worker:
        with pytest.raises(ChildFailure, match=reason) as caught:
            run_module(worker, "ends")
        assert caught.value.verdict is Verdict.CRASHED
        assert "last words" in caught.value.tail


ASKS = """
import os, subprocess, sys
assert sys.stdin.read() == "" and sys.stdin.readline() == "" and os.read(0, 1) == b""
assert subprocess.run(["cat"], capture_output=True, check=True).stdout == b""
print("on standard output", flush=True)
os.write(1, b"and on its descriptor")
input("Which licence? ")
"""


@pytest.mark.usefixtures("processes")
def test_whoever_reads_standard_input_finds_its_end_and_not_our_commands(child, tmp_path):
    with child(asks=ASKS) as worker:
        with pytest.raises(
            ChildFailure, match=r"EOFError: it asks 'Which licence\?', and nobody is there to answer"
        ) as caught:
            run_module(worker, "asks")
        assert caught.value.verdict is Verdict.FAILED
        assert "on standard output\nand on its descriptor" in (tmp_path / "child.log").read_text()
        assert run_module(worker, "json") is None


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys; sys.exit('no licence\\nfound')", "it ended the process: no licence found"),
        ("import sys; sys.exit(3)", "it ended the process with code 3"),
        ("raise SystemExit", "it ended the process without a word"),
        ("raise KeyboardInterrupt('stop it')", "it interrupted the process: stop it"),
    ],
)
def test_what_ends_the_process_in_words_is_an_answer_and_the_child_stays(child, source, reason):
    with child(ends=source) as worker:
        with pytest.raises(ChildFailure, match=reason) as caught:
            run_module(worker, "ends")
        assert caught.value.verdict is Verdict.FAILED
        assert run_module(worker, "json") is None


@pytest.mark.usefixtures("processes")
def test_nobody_waits_for_processes_that_a_child_has_forked_when_it_is_gone(child):
    forks = """
        import os, sys, time
        sleeper = os.fork()
        if sleeper == 0:
            time.sleep(600)
        print("sleeper", sleeper, file=sys.stderr, flush=True)
        os._exit(7)
    """
    with child(forks=forks) as worker:
        with pytest.raises(ChildFailure, match="exited with code 7 during import") as caught:
            run_module(worker, "forks")
        assert gone(int(caught.value.tail.split()[-1])), "nor does it outlive the child"


@pytest.mark.usefixtures("processes")
def test_a_hanging_child_is_ended_with_what_it_started(child):
    hanging = """
        import subprocess, sys, time
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("helper", helper.pid, file=sys.stderr, flush=True)
        time.sleep(600)
    """
    with child(hangs=hanging) as worker:
        start = time.monotonic()
        with pytest.raises(ChildFailure, match="did not finish within its time limit") as caught:
            run_module(worker, "hangs", timeout=1.5)
        assert caught.value.verdict is Verdict.TIMEOUT
        assert time.monotonic() - start < 5
        helper = int(caught.value.tail.split()[-1])
        assert gone(worker.pid)
        assert gone(helper), "a compiler's own child must not outlive it"


@pytest.mark.usefixtures("processes")
def test_temporary_files_go_with_the_process(child, tmp_path):
    with child(litters=LITTERS) as worker:
        run_module(worker, "litters")
        folder = litter(tmp_path / "child.log")
        assert folder.is_dir()
        # Addresses of sockets, which libraries make there, are to have room.
        assert len(str(folder)) < 70
    assert not folder.exists()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("forked", [False, True], ids=["spawned", "forked"])
def test_a_killed_parent_leaves_no_children(tmp_path, forked):
    (tmp_path / "hangs.py").write_text(LITTERS + "import time; time.sleep(600)")
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from pathlib import Path
            from mlflow_ngraph.processes import environment
            from mlflow_ngraph.processes import fork_server
            from mlflow_ngraph.processes.child import Child
            from mlflow_ngraph.processes.warden import Warden
            with fork_server.shared():
                env = environment.of_threads(1, Path("scratch"), patient=True)
                worker = Child("mlflow_ngraph.execute.worker", env, Path("child.log"), warden=Warden(), forked={forked})
                print(worker.pid, flush=True)
                worker.request("import", 600, modules=["hangs"], blocked=[], freed_memory="keep")
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(tmp_path)])}
    parent = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    littered = litter(tmp_path / "child.log")
    assert psutil.pid_exists(worker)
    server = psutil.Process(worker).ppid()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(worker)
    assert gone(server)
    assert gone_folder(littered)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("forked", [False, True], ids=["spawned", "forked"])
def test_files_in_the_current_directory_are_not_imported(tmp_path, monkeypatch, forked):
    """Neither by Python itself, nor by the package, nor by what a child is told to import."""
    for name in ("runpy", "json", "importlib", "typing", "psutil", "numpy", "mlflow_ngraph", "stray"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a stray file was imported')")
    monkeypatch.chdir(tmp_path)
    env = environment.of_threads(1, patient=True)
    with fork_server.shared(), closing(Child(module.__name__, env, forked=forked)) as worker:
        assert run_module(worker, "numpy") is None
        with pytest.raises(ChildFailure, match="No module named 'stray'"):
            run_module(worker, "stray")


@pytest.mark.usefixtures("processes")
def test_a_factory_beside_the_study_is_found_where_a_workload_names_it(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(2, 2)\n")
    monkeypatch.chdir(tmp_path)
    ref = {"scheme": "torch", "target": "beside:net", "options": {"inputs": [{"shape": ["batch", 2]}]}}
    with closing(Child(module.__name__, environment.of_threads(1))) as worker:
        (answer,) = worker.request("check", 60, workloads=[ref], init=asdict(Init()))
    assert answer["label"] == "net"


@pytest.mark.usefixtures("processes")
def test_what_has_ended_says_so_again(child):
    with child(dies="import os; os._exit(7)") as worker:
        for _ in range(2):
            with pytest.raises(ChildFailure, match="exited with code 7 during import"):
                run_module(worker, "dies")
        worker.poll()
        worker.send_signal(signal.SIGTERM)
        assert worker.closed


@pytest.mark.usefixtures("processes")
def test_waiting_costs_the_parent_nothing(child):
    with child(slow="import time; time.sleep(1.5)") as worker:
        before = time.process_time()
        run_module(worker, "slow")
        assert time.process_time() - before < 0.03


def test_threads_are_set_and_stray_settings_are_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("TVM_NUM_THREADS", "9")
    env = environment.of_threads(3, tmp_path)
    assert env["OMP_NUM_THREADS"] == env["TVM_NUM_THREADS"] == "3"
    assert "OMP_WAIT_POLICY" not in env
    assert "TVM_NUM_THREADS" not in environment.of_threads(None, tmp_path)
    assert environment.of_threads(3, tmp_path, patient=True)["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.usefixtures("processes")
def test_a_warden_that_was_killed_has_another_in_its_place(tmp_path):
    """A study that loses it ends neither by that, nor with children left behind."""
    warden = Warden()
    sleeping = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    folders = [tmp_path / 'of the "first"', tmp_path / "of the\nsecond"]
    for folder in folders:
        folder.mkdir()
    warden.add(sleeping[0].pid, folders[0])
    warden.process.kill()
    warden.process.wait()
    warden.add(sleeping[1].pid, folders[1])
    warden.close()
    assert list(tmp_path.iterdir()) == []
    assert [process.wait(10) for process in sleeping] == [-signal.SIGKILL] * 2
    gone = Warden()
    gone.process.kill()
    gone.process.wait()
    gone.close()


def test_a_signal_without_a_name_has_its_number() -> None:
    assert (signal_name(9), signal_name(40)) == ("SIGKILL", "signal 40")
