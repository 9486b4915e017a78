"""Commands end when their time is up, with all that they started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlflow_ngraph_testing.first_contact.command import NGRAPH, RunningCommand

pytestmark = pytest.mark.usefixtures("processes")

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
print("still here", file=sys.stderr, flush=True)
time.sleep(600)
"""


def start(folder: Path, code: str) -> RunningCommand:
    return RunningCommand([sys.executable, "-c", code], folder / "logs", "command", folder, {})


def test_it_says_how_it_ended(tmp_path: Path) -> None:
    ended = start(tmp_path, "import sys; print('out'); sys.exit('first\\nlast')").wait(60)
    assert (ended.code, ended.out) == (1, "out\n")
    assert ended.how == "ended with code 1: first last"


def test_what_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    running = start(tmp_path, STUBBORN)
    while "still here" not in running.said():
        time.sleep(0.05)
    ended = running.wait(0.5)
    assert ended.code is None
    assert "still here" in ended.err
    child = int(ended.out)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_the_command_line_imports_no_file_of_the_folder_that_it_runs_in(tmp_path: Path) -> None:
    for name in ("runpy", "json", "typing", "numpy", "mlflow_ngraph"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a stray file was imported')")
    ended = RunningCommand(
        [*NGRAPH, "info", "devices", "--json"], tmp_path / "logs", "command", tmp_path, os.environ
    ).wait(60)
    assert ended.code == 0, ended.err
