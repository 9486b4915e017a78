"""Signals: what the first one lets come to its end, what the second one breaks off, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from mlflow import MlflowClient

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import journal, replay, study_directories
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.processes.child import Child
from mlflow_ngraph.processes.interruption import Interrupted, deferred, ending, listening
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse

pytestmark = pytest.mark.long

TINY = "block:mha?width=16"
PATIENCE_S = 300
STUDY: dict[str, Any] = {
    "name": "slow",
    "workloads": [TINY],
    "compilers": ["identity", {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": 200}}],
    "batch_sizes": [1, 2],
    "repetitions": 10,
    "slice_repetitions": 5,
    "threads": 1,
    "warmup": {"window": 2, "max_seconds": 0.2},
    "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
    "limits": {"reload_seconds": 0, "verify_seconds": 1},
}
"""With slices of about a second."""


class Asked:
    """What was told of signals."""

    def __init__(self) -> None:
        self.waits: list[bool] = []

    def __call__(self, waits: bool) -> None:
        self.waits.append(waits)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_where_it_comes_unless_a_block_has_to_come_to_its_end(signum: signal.Signals) -> None:
    before, asked = signal.getsignal(signum), Asked()
    with listening(asked), pytest.raises(Interrupted) as caught:
        signal.raise_signal(signum)
    assert (caught.value.signum, asked.waits) == (signum, [False])
    done = []

    def work() -> None:
        with deferred(breakable=True):
            signal.raise_signal(signum)
            with deferred():
                done.append("inner")
            done.append("outer")

    with listening(asked), pytest.raises(Interrupted):
        work()
    assert (done, asked.waits) == (["inner", "outer"], [False, True])
    assert signal.getsignal(signum) is before


def test_ctrl_c_again_breaks_off_what_may_be_broken_off() -> None:
    done = []

    def work() -> None:
        with deferred(breakable=True):
            signal.raise_signal(signal.SIGINT)
            with deferred():
                signal.raise_signal(signal.SIGINT)
                done.append("this may not")
            done.append("this may")

    with listening(Asked()) as asked, pytest.raises(Interrupted):
        work()
    assert done == ["this may not"]
    assert asked.hurried


def test_a_block_comes_to_its_end_when_a_command_is_ended_within_it() -> None:
    done = []

    def work() -> None:
        with ending():
            with deferred():
                signal.raise_signal(signal.SIGTERM)
                done.append("within")
            done.append("after")

    with pytest.raises(Interrupted):
        work()
    assert done == ["within"]


def test_other_signals_count_once_however_often_they_come() -> None:
    """A group of processes is told to end, and each hears of the end of its parent as well."""
    done = []

    def work() -> None:
        with deferred(breakable=True):
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
                signal.raise_signal(signum)
            done.append("to the end")

    with listening(Asked()) as asked, pytest.raises(Interrupted) as caught:
        work()
    assert (done, asked.hurried, caught.value.signum) == (["to the end"], False, signal.SIGINT)


def test_nothing_breaks_off_tidying_up_and_ctrl_c_breaks_off_what_comes_after() -> None:
    with listening(Asked()) as asked:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert not asked.hurried
        asked.tidied()
        signal.raise_signal(signal.SIGTERM)
        with deferred(breakable=True):
            pass
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        assert asked.hurried


def test_signals_that_whoever_started_us_ignores_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening(Asked()):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_take_no_notice() -> None:
    raised = []

    def work() -> None:
        try:
            with listening(Asked()), deferred():
                time.sleep(0)
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    def elsewhere() -> None:
        with deferred():
            signal.raise_signal(signal.SIGTERM)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    with listening(Asked()), pytest.raises(Interrupted):
        elsewhere()
    assert not raised


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_journal_that_a_signal_meets_in_the_middle_of_a_line_goes_on(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "fsync":
        monkeypatch.setattr(
            "mlflow_ngraph.execute.journal.os.fsync", lambda number: signal.raise_signal(signal.SIGTERM)
        )
    with Journal(tmp_path) as writer, listening(Asked()):
        if call == "write":
            monkeypatch.setattr(writer, "_file", Interrupting(writer._file))
        with pytest.raises(Interrupted):
            writer.append("first")
        writer.append("second")
    assert [event["event"] for event in journal.read(tmp_path)] == ["first", "second"]


class Interrupting:
    """A file whose writing is interrupted once it has happened."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, content: bytes) -> int:
        size = int(self._file.write(content))
        if b"first" in content:
            signal.raise_signal(signal.SIGTERM)
        return size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Started:
    """A study that the command line runs, in a session of its own."""

    def __init__(self, folder: Path, uri: str | None, **changes: Any) -> None:
        self.folder, self.home = folder, folder / "home"
        path = folder / "slow.yaml"
        path.write_text(yaml.safe_dump({**STUDY, **changes}))
        where = ["--offline"] if uri is None else ["--tracking-uri", uri]
        self.command = [
            *(sys.executable, "-m", "mlflow_ngraph", "benchmark", str(path), "--home", str(self.home), *where),
        ]
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.family: list[psutil.Process] = []

    @property
    def directory(self) -> Path:
        (directory,) = (self.home / "studies").iterdir()
        return directory

    def events(self) -> list[journal.Event]:
        try:
            return list(journal.read(self.directory))
        except (ValueError, FileNotFoundError, JournalError):
            return []

    def until(self, reached: Callable[[list[journal.Event]], bool]) -> None:
        """Wait until the journal says so; remembers who works for the study then."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached(self.events()):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def ended(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def orphans(self) -> list[psutil.Process]:
        """Who still works for the study a little later."""
        return list(psutil.wait_procs(self.family, timeout=20)[1])


@pytest.fixture
def kept(fake_compiler: None, processes: None) -> Iterator[list[Started]]:
    studies: list[Started] = []
    yield studies
    for study in studies:
        if study.process.poll() is None:
            os.killpg(study.process.pid, signal.SIGKILL)
            study.process.communicate()


def finished(events: list[journal.Event]) -> bool:
    return any(event["event"] == "cell_finished" for event in events)


def test_the_first_signal_ends_a_study_tidily_and_the_same_command_goes_on(
    sqlite_uri: str, tmp_path: Path, kept: list[Started]
) -> None:
    kept.append(study := Started(tmp_path, sqlite_uri))
    study.until(finished)
    study.process.send_signal(signal.SIGINT)
    study.process.send_signal(signal.SIGTERM)  # as `mlflow run` does after Ctrl-C
    code, said = study.ended()
    assert code == 128 + signal.SIGINT
    told = " ".join(said.split())  # lines are broken
    assert re.search(r"ending.*: what was measured is kept, and recorded if it can be; Ctrl-C again ends at once", told)
    assert "Traceback" not in said
    assert study.orphans() == []
    events = study.events()
    (cells,) = [{event["cell"] for event in events if event["event"] == "cell_finished"}]
    assert 0 < len(cells) < 4
    client = MlflowClient(sqlite_uri)
    (experiment,) = [one.experiment_id for one in client.search_experiments() if one.name == "ngraph"]
    statuses = {run.data.tags["ngraph.kind"]: run.info.status for run in client.search_runs([experiment])}
    assert statuses["study"] == "KILLED"
    assert "RUNNING" not in statuses.values()
    lanes = {event["lane"] for event in events if event["event"] == "cell_finished"}
    assert {event["lane"] for event in events if event["event"] == "lane_recorded"} == lanes, (
        "what is known is recorded"
    )
    subprocess.run(study.command, check=True, capture_output=True, timeout=PATIENCE_S)
    record = replay.load(study.directory)
    assert record.sessions == 2
    assert sum(len(lane.cells) for lane in record.lanes.values()) == 4
    again = [event["cell"] for event in study.events() if event["event"] == "cell_finished"]
    assert len(again) == 4, "nothing is measured twice"
    runs = client.search_runs([experiment])
    assert sorted(run.data.tags["ngraph.kind"] for run in runs) == ["lane", "lane", "study"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    models = client.search_logged_models([experiment])
    assert len(models) == sum(len(lane.engines) for lane in record.lanes.values())


class Late:
    """Asks a study to end when it has just said that it is whole."""

    def on_event(self, event: journal.Event) -> None:
        if event["event"] == "study_finished":
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("compilers", "processes", "clean_environment")
def test_a_study_that_was_whole_when_the_signal_came_is_recorded_as_finished(sqlite_uri: str, tmp_path: Path) -> None:
    study = parse({**STUDY, "compilers": ["identity"], "batch_sizes": [1]})
    with pytest.raises(Interrupted) as ended:
        run_study(study, home=tmp_path, tracking_uri=sqlite_uri, observer=Late())
    (directory,) = (tmp_path / "studies").iterdir()
    assert ended.value.measured == directory, "as it is recorded, the same command would measure all of it again"
    kinds = [event["event"] for event in journal.read(directory)]
    assert "study_interrupted" not in kinds
    assert kinds[-1] == "study_recorded"
    assert study_directories.end(directory) == "recorded"
    runs = MlflowClient(sqlite_uri).search_runs(["1"])
    assert sorted((run.data.tags["ngraph.kind"], run.info.status) for run in runs) == [
        ("lane", "FINISHED"), ("study", "FINISHED")
    ]  # fmt: skip


def test_a_slice_that_is_timed_comes_to_its_end(
    tmp_path: Path, fake_compiler: None, processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = Child.request, list[str]()

    def request(child: Child, command: str, *arguments: Any, **fields: Any) -> Any:
        if command == "slice":
            begun.append(command)
            if len(begun) == 3:
                signal.raise_signal(signal.SIGINT)
        return real(child, command, *arguments, **fields)

    monkeypatch.setattr(Child, "request", request)
    with pytest.raises(Interrupted):
        run_study(parse({**STUDY, "batch_sizes": [1]}), home=tmp_path, offline=True)
    (directory,) = (tmp_path / "studies").iterdir()
    kinds = [event["event"] for event in journal.read(directory)]
    assert kinds.count("slice") == len(begun) == 3
    assert set(kinds[len(kinds) - kinds[::-1].index("slice") :]) == {"lane_finished", "study_interrupted"}


def test_ctrl_c_twice_ends_at_once_and_leaves_nobody_behind(tmp_path: Path, kept: list[Started]) -> None:
    slow = {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": 500}}
    kept.append(
        study := Started(tmp_path, None, compilers=[slow], batch_sizes=[1], repetitions=200, slice_repetitions=200)
    )
    study.until(lambda events: [event["event"] for event in events].count("cell_ready") == 2)
    time.sleep(2)
    study.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    study.process.send_signal(signal.SIGINT)
    code, _ = study.ended()
    assert code == 128 + signal.SIGINT
    assert study.orphans() == []
    lanes = {lane.lane.id: lane.lane.compiler for lane in replay.load(study.directory).lanes.values()}
    slices = [event["lane"] for event in study.events() if event["event"] == "slice"]
    assert "fake" not in [lanes[lane] for lane in slices], "nobody waits for a slice of 100 s"


def test_nobody_outlives_a_killed_parent_even_if_the_warden_is_killed_with_it(
    tmp_path: Path, kept: list[Started]
) -> None:
    hangs = {"name": "fake", "flags": {"behaviour": "hang", "at": "compile"}}
    kept.append(study := Started(tmp_path, None, compilers=["identity", "torchscript", hangs], batch_sizes=[1]))
    wanted = "fork_server_child"
    study.until(lambda events: any(event["event"] == "workload_prepared" for event in events))
    deadline = time.monotonic() + PATIENCE_S
    while not any("execute.worker" in " ".join(one.cmdline()) for one in study.family):
        assert time.monotonic() < deadline
        study.until(lambda events: True)
    assert any(wanted in " ".join(one.cmdline()) for one in study.family)
    for one in study.family:
        if "warden" in " ".join(one.cmdline()):
            one.kill()
    study.process.kill()
    study.process.communicate()
    assert study.orphans() == []
