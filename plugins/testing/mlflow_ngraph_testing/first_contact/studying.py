"""Studies on a new machine: ``smoke``, one that waits for another, one that is killed and resumed."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from mlflow_ngraph import study as studies
from mlflow_ngraph.errors import DeviceBusyError
from mlflow_ngraph.execute import journal, machine_lock
from mlflow_ngraph.execute.machine_lock import ExclusiveMachine
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_testing.first_contact import cells
from mlflow_ngraph_testing.first_contact.bench import BASELINE, Bench
from mlflow_ngraph_testing.first_contact.command import RunningCommand, outlived
from mlflow_ngraph_testing.first_contact.finding import Finding, Status

_LOOK_S = 0.05
_KILLED_AT = "slice"
_LAST_BREATH_SECONDS = 10.0
"""The event after which a study is killed: it measures."""


def smoke(bench: Bench, seconds: float) -> Finding:
    """Run the ready-made study, and record it in a database in the folder."""
    ended = bench.run("smoke", bench.benchmark("smoke", offline=False), seconds)
    record = bench.record("smoke")
    if record is None:
        return Finding("wrong", f"the study {ended.how}")
    table, facts = cells.table(record, "The study smoke"), {"exit_code": ended.code, "seconds": ended.seconds}
    if problems := cells.faults(record):
        return Finding("wrong", "; ".join(problems), [table], facts)
    if ended.code is None:
        return Finding("incomplete", f"{cells.counted(record)}; the study {ended.how}{_waiting()}", [table], facts)
    if ended.code not in (0, 3):
        return Finding("wrong", f"{cells.counted(record)}; the study {ended.how}", [table], facts)
    return Finding("right", f"{cells.counted(record)}, recorded in a database of its own", [table], facts)


def locking(bench: Bench, seconds: float) -> Finding:
    """Hold the machine: one study must refuse to start meanwhile, another must wait for its end and then run."""
    deadline = time.monotonic() + seconds
    study = bench.write_study("second", {**_small(bench), "name": "second", "batch_sizes": [1], "repetitions": 3})
    command = bench.benchmark(study, "--fresh", "--when-busy")
    with ExitStack() as stack:
        machine = _hold(stack, deadline - seconds * 2 / 3)
        if machine is None:
            return Finding("incomplete", f"not tried{_waiting()}")
        refused = bench.run("refused", [*command, "refuse"], seconds / 3)
        waiting = stack.enter_context(bench.started("waiting", [*command, "wait"]))
        waited = _saw(waiting, r"measuring study 'first-contact'", deadline - seconds / 3)
        still = waiting.process.poll() is None and bench.record("second") is None
        machine.release()
        ended = waiting.wait(max(deadline - time.monotonic(), 1.0))
    seen = {
        "a study that may not wait refuses, and says who measures": refused.code == 2
        and "first-contact" in refused.err,
        "another one says that it waits": waited,
        "it measures nothing meanwhile": still,
        "it runs once the machine is free": ended.code == 0,
    }
    table = Sheet("One study at a time", ("what", "seen"), list(seen.items()))
    facts = {"lock": str(machine_lock.lock_folder()), "seen": seen}
    if all(seen.values()):
        return Finding(
            "right", f"a second study refuses or waits (lock in {machine_lock.lock_folder()})", [table], facts
        )
    if ended.code is None and sum(seen.values()) == len(seen) - 1:
        return Finding("incomplete", f"the study that waited {ended.how}{_waiting()}", [table], facts)
    wrong = [what for what, true in seen.items() if not true]
    return Finding("wrong", f"not so: {'; '.join(wrong)} (refused: {refused.how}; waited: {ended.how})", [table], facts)


def interruption(bench: Bench, seconds: float) -> Finding:
    """``kill -9`` a study while it measures, look for remains, and resume it."""
    deadline = time.monotonic() + seconds
    study = bench.write_study("killed", {**_small(bench), "name": "killed", "batch_sizes": [1, 2], "repetitions": 10})
    with bench.started("killed", bench.benchmark(study, "--fresh")) as running:
        if not _reached(bench, running, deadline - seconds / 3):
            ended = running.wait(0.1)
            status: Status = "incomplete" if ended.code is None else "wrong"
            return Finding(status, f"the study {ended.how} before it measured{_waiting()}")
        family = psutil.Process(running.process.pid).children(recursive=True)
        running.kill()
    orphans = outlived(family, _LAST_BREATH_SECONDS)
    resumed = bench.run("resumed", bench.benchmark(study, "--resume"), max(deadline - time.monotonic(), 1.0))
    directory = bench.directory("killed")
    assert directory is not None  # it measured
    events = list(journal.read(directory))
    times = Counter(event["cell"] for event in events if _right(event))
    lanes = next(event for event in events if event["event"] == "study_started")["lanes"]
    expected = [journal.cell_id(lane["id"], batch) for lane in lanes for batch in lane["batch_sizes"]]
    seen = {
        "its children end with it": not orphans,
        "it goes on where it was": resumed.code == 0,
        "every cell is measured once": all(times[cell] == 1 for cell in expected),
    }
    for orphan in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    table = Sheet("Killed and resumed", ("what", "seen"), list(seen.items()))
    facts = {"killed_after": _KILLED_AT, "cells": dict(times), "seen": seen}
    if all(seen.values()):
        return Finding("right", f"{len(expected)} cells, each measured once; nothing left behind", [table], facts)
    if resumed.code is None and not orphans:
        return Finding("incomplete", f"the resumed study {resumed.how}{_waiting()}", [table], facts)
    wrong = [what for what, true in seen.items() if not true]
    return Finding("wrong", f"not so: {'; '.join(wrong)} (resumed: {resumed.how})", [table], facts)


def _hold(stack: ExitStack, deadline: float) -> ExclusiveMachine | None:
    """The machine, held until the stack is left; None if another study measures until the time is up."""
    while True:
        try:
            return stack.enter_context(ExclusiveMachine("first-contact"))
        except DeviceBusyError:
            if time.monotonic() > deadline:
                return None
            time.sleep(1.0)


def _small(bench: Bench) -> dict[str, Any]:
    whole = studies.load("smoke").model_dump(mode="json")
    return {**whole, "compilers": [BASELINE], "device": bench.profile.name}


def _right(event: Mapping[str, Any]) -> bool:
    return bool(event["event"] == "cell_finished" and event["verdict"] == Verdict.OK.value)


def _saw(running: RunningCommand, pattern: str, deadline: float) -> bool:
    """Wait for a pattern in a command's messages; False when the time is up or the command ends."""
    while time.monotonic() < deadline and running.process.poll() is None:
        if re.search(pattern, running.said()):
            return True
        time.sleep(_LOOK_S)
    return False


def _reached(bench: Bench, running: RunningCommand, deadline: float) -> bool:
    """Wait until the study measures; False when the time is up or it ends."""
    while time.monotonic() < deadline and running.process.poll() is None:
        directory = bench.directory("killed")
        if directory is not None and _contains(directory / journal.FILE_NAME, f'"event":"{_KILLED_AT}"'):
            return True
        time.sleep(_LOOK_S)
    return False


def _contains(path: Path, text: str) -> bool:
    return text in path.read_text(encoding="utf-8")


def _waiting() -> str:
    """Note on the study that holds the machine."""
    holder = machine_lock.holder()
    return f"; this machine is measuring {holder}" if holder is not None else ""
