"""Standstill: suspends the processes of the fleet's engine (Ray) on this machine while a slice is timed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Timer

import psutil

from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph_fleet.node_agent import MARK, STUDY

LONGEST_S = 8.0
"""Longest suspension. Others of the fleet could take a node that is silent for longer for lost."""
_TOGETHER_S, BREATH_S = 5.0, 0.3
"""Pause after a long suspension, without timing: requests for logs, or for the end of a study, are answered."""
_LOOK_S = 10.0
"""Time for which a list of processes is used."""


class Standstill:
    """Suspends processes around a study.

    They go on after a block, after `LONGEST_S`, or when this process ends, however it does.

    Parameters
    ----------
    processes : Callable[[], Sequence[psutil.Process]]
        Processes to suspend, such as `of_engine`; asked from time to time, because an engine's processes come and go.
    """

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]]) -> None:
        self._look = processes
        self._warden = Warden()
        self._processes: Sequence[psutil.Process] = ()
        self._looked_at = -_LOOK_S
        self._still_s = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Suspend the engine within the block."""
        if self._still_s > _TOGETHER_S:
            time.sleep(BREATH_S)
            self._still_s = 0.0
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._processes, self._looked_at = self._look(), time.monotonic()
            self._warden.resume_at_end([process.pid for process in self._processes])
        began = time.monotonic()
        ending = Timer(LONGEST_S, self._signal, [signal.SIGCONT])
        ending.daemon = True
        ending.start()
        try:
            self._signal(signal.SIGSTOP)
            yield
        finally:
            ending.cancel()
            self._signal(signal.SIGCONT)
            self._still_s += time.monotonic() - began

    def close(self) -> None:
        self._warden.close()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with suppress(psutil.Error):
                process.send_signal(number)


def of_engine(mark: str) -> list[psutil.Process]:
    """The processes of an engine on this machine, without studies and what they have started.

    Ray gives some of its processes titles, which overwrite what the kernel shows as their environment: these are found below
    those that started them.

    Parameters
    ----------
    mark : str
        Value of the variable `MARK` in the engine's processes.
    """
    engine, studies = set[psutil.Process](), {psutil.Process()}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real != os.getuid() or process.environ().get(MARK) != mark:
                continue
            engine.update((process, *process.children(recursive=True)))
            if STUDY in " ".join(process.cmdline()):
                studies.add(process)
    for study in tuple(studies):
        with suppress(psutil.Error):
            studies.update(study.children(recursive=True))
    return sorted(engine - studies, key=lambda process: process.pid)
