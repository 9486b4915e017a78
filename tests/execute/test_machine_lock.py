"""One benchmark at a time on a machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mlflow_ngraph.errors import DeviceBusyError, DeviceError
from mlflow_ngraph.execute import machine_lock
from mlflow_ngraph.execute.machine_lock import NAME, VARIABLE, ExclusiveMachine, Holder, holder, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from mlflow_ngraph.execute.machine_lock import ExclusiveMachine
folder, study, when_busy, seconds = sys.argv[1:]
with ExclusiveMachine(study, when_busy, lambda who: print("waits for", who, flush=True), Path(folder)):
    print("holds", flush=True)
    time.sleep(float(seconds))
"""
NOBODY = 65534


def start(folder: Path, study: str, when_busy: str = "refuse", seconds: float = 60) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), study, when_busy, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path, "theirs")
    assert said(process) == "holds\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("processes")
def test_the_second_is_refused_and_told_who_holds_the_machine(other: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(DeviceBusyError, match=rf"study 'theirs' of .*process {other.pid}, .*--when-busy wait"):
        ExclusiveMachine("mine", folder=tmp_path).__enter__()
    found = holder(tmp_path)
    assert found is not None
    assert (found.pid, found.study) == (other.pid, "theirs")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_holder(other: subprocess.Popen[str], tmp_path: Path, signum: int) -> None:
    os.kill(other.pid, signum)
    other.wait()
    assert holder(tmp_path) is None
    with ExclusiveMachine("mine", folder=tmp_path) as lock:
        found = holder(tmp_path)
        assert found is not None
        assert found.study == "mine"
        lock.release()
        assert holder(tmp_path) is None, "released before the end of the block"
    assert holder(tmp_path) is None


@pytest.mark.usefixtures("processes")
def test_waiting_sleeps_until_the_holder_is_killed(other: subprocess.Popen[str], tmp_path: Path) -> None:
    waiting = start(tmp_path, "mine", "wait", 0)
    assert said(waiting).startswith("waits for study 'theirs'")
    process = psutil.Process(waiting.pid)
    switches = process.num_ctx_switches()
    time.sleep(0.5)
    assert waiting.poll() is None
    assert process.num_ctx_switches().voluntary - switches.voluntary <= 2, "it sleeps, and is not woken to look"
    other.kill()
    assert said(waiting) == "holds\n"
    assert waiting.wait() == 0


@pytest.mark.usefixtures("processes")
def test_whoever_only_looks_keeps_nobody_out(tmp_path: Path) -> None:
    """A look takes a shared lock for a moment; a study that starts at that moment is not refused."""
    looks = "import sys; from pathlib import Path; from mlflow_ngraph.execute.machine_lock import holder\n"
    looks += "print('ready', flush=True)\nwhile True: holder(Path(sys.argv[1]))"
    with ExclusiveMachine("mine", folder=tmp_path):
        pass
    looking = subprocess.Popen([sys.executable, "-c", looks, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert said(looking) == "ready\n"
        for _ in range(200):
            with ExclusiveMachine("mine", "refuse", folder=tmp_path):
                pass
    finally:
        looking.kill()
        looking.wait()


@pytest.mark.usefixtures("processes")
def test_a_child_that_outlives_the_holder_holds_nothing(tmp_path: Path) -> None:
    with ExclusiveMachine("mine", folder=tmp_path):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        assert holder(tmp_path) is None
    finally:
        child.kill()
        child.wait()


def test_everybody_may_take_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with ExclusiveMachine("mine", folder=tmp_path):
            assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


def as_nobody(folder: Path, when_busy: machine_lock.WhenBusy) -> int:
    """The exit code of a process of another user, which the file does not belong to, that takes the lock."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setuid(NOBODY)
            with ExclusiveMachine("theirs", when_busy, folder=folder):
                code = 0
        except DeviceBusyError:
            code = 7
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_another_user_is_kept_out_and_let_in_through_the_same_file() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)  # as /run/lock and /var/tmp
        with ExclusiveMachine("mine", folder=folder):
            assert as_nobody(folder, "refuse") == 7
        assert as_nobody(folder, "refuse") == 0


def test_all_users_come_to_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere; a folder that only root may write would let a user measure beside it."""
    of_root, of_all, read_only = (tmp_path / name for name in ("root", "all", "read-only"))
    for folder, mode in ((of_root, 0o755), (of_all, 0o1777), (read_only, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != read_only and real(path, mode))
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(machine_lock, "FOLDERS", (tmp_path / "missing", of_root, read_only, of_all))
    assert lock_folder() == of_all
    monkeypatch.setenv(VARIABLE, str(of_root))
    assert lock_folder() == of_root


def test_a_holder_in_a_container_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"(process {os.getpid()}, since" in str(Holder.myself("mine"))
    assert "(process 7 in 3f2a1c, since" in str(Holder(7, "3f2a1c", "root", "theirs", time.time()))


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert Holder.myself("mine").user == f"user {os.getuid()}"
    assert Holder.myself("mine").host == socket.gethostname()


@pytest.mark.parametrize("place", ["file", "missing"])
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match=rf"{tmp_path / place}.*{VARIABLE}"):
        ExclusiveMachine("mine", folder=tmp_path / place).__enter__()
    assert holder(tmp_path / place) is None


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / NAME).symlink_to(tmp_path / "precious")
    with pytest.raises(DeviceError, match="keeps benchmarks apart"):
        ExclusiveMachine("mine", folder=tmp_path).__enter__()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_second_name_of_another_file_in_its_place_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / NAME).hardlink_to(tmp_path / "precious")
    with pytest.raises(DeviceError, match="is no file of its own"), ExclusiveMachine("mine", folder=tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "content"
