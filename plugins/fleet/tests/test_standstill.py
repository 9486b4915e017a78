"""An engine of a fleet stands still while something is timed, and goes on whatever becomes of who stopped it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing

import psutil
import pytest

from mlflow_ngraph_fleet import node_agent, standstill
from mlflow_ngraph_fleet.standstill import Standstill

pytestmark = pytest.mark.usefixtures("processes")

STOPPED = psutil.STATUS_STOPPED
MARK = "standstill/test"
STARTS_ANOTHER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], env={}); time.sleep(60)"


def start(*words: str, mark: str = MARK) -> psutil.Process:
    """A process that is not below this one, as an engine's is not below a study."""
    command = [sys.executable, "-c", STARTS_ANOTHER, *words]
    program = f"{shlex.join(command)} > /dev/null 2>&1 & echo $!"
    environment = {**os.environ, node_agent.MARK: mark}
    said = subprocess.run(["sh", "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return psutil.Process(int(said))


@pytest.fixture
def started():
    """The processes of an engine, of a study that is its job, and of another fleet; each with one that it has started."""
    found = {"engine": start(), "study": start(*node_agent.STUDY.split()), "other": start(mark="another/fleet")}
    for process in found.values():
        await_(lambda process=process: process.children())
    yield found
    for process in found.values():
        for member in (*process.children(recursive=True), process):
            member.kill()


def still_engine() -> Standstill:
    return Standstill(lambda: standstill.of_engine(MARK))


def await_(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


def states(process: psutil.Process) -> set[str]:
    return {member.status() for member in (process, *process.children())}


def test_the_engine_stands_still_within_the_block_and_nobody_else(started):
    with closing(still_engine()) as still:
        for _ in range(2):
            with still():
                # Whoever runs the block is a job of the engine itself, and has its variables.
                await_(lambda: states(started["engine"]) == {STOPPED})
                assert STOPPED not in states(started["study"]) | states(started["other"])
            await_(lambda: STOPPED not in states(started["engine"]))
        with pytest.raises(KeyError), still():
            raise KeyError
        await_(lambda: STOPPED not in states(started["engine"]))


def test_the_engine_goes_on_when_a_block_takes_long(started, monkeypatch):
    monkeypatch.setattr(standstill, "LONGEST_S", 0.3)
    with closing(still_engine()) as still, still():
        await_(lambda: states(started["engine"]) == {STOPPED})
        await_(lambda: STOPPED not in states(started["engine"]), seconds=3)


def test_the_engine_may_breathe_between_blocks(started, monkeypatch):
    monkeypatch.setattr(standstill, "_TOGETHER_S", 0.05)
    with closing(still_engine()) as still:
        with still():
            time.sleep(0.06)
        begin = time.monotonic()
        with still():
            assert time.monotonic() - begin >= standstill.BREATH_S
        assert started["engine"].is_running()


def test_the_engine_goes_on_when_the_study_is_killed(started, tmp_path):
    script = tmp_path / "study.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            from mlflow_ngraph_fleet.standstill import Standstill, of_engine
            with Standstill(lambda: of_engine({MARK!r}))():
                print("still", flush=True)
                time.sleep(60)
            """
        )
    )
    study = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert study.stdout is not None
    assert study.stdout.readline() == "still\n"
    await_(lambda: states(started["engine"]) == {STOPPED})
    study.send_signal(signal.SIGKILL)
    study.wait()
    await_(lambda: STOPPED not in states(started["engine"]))
